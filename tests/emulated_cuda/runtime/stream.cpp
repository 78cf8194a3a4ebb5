// SPDX-License-Identifier: BSD-3-Clause
#include "stream.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <unordered_map>

#include "counters.h"
#include "knobs.h"
#include "race/detector.h"

namespace emulated_cuda {
namespace {

using Streams = std::unordered_map<Stream*, std::shared_ptr<Stream>>;

std::mutex streams_mutex;
thread_local int device_now = 0;

Streams& streams() {
  static auto& all = *new Streams;
  return all;
}

std::shared_ptr<Stream> default_stream(int device) {
  static auto& defaults = *new std::map<int, std::shared_ptr<Stream>>;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  auto& stream = defaults[device];
  if (!stream)
    stream = create_stream(device, 0);
  return stream;
}

std::shared_ptr<Stream> thread_stream(int device) {
  thread_local std::map<int, std::shared_ptr<Stream>> mine;
  auto& stream = mine[device];
  if (!stream)
    stream = create_stream(device, 0);
  return stream;
}

bool is_modelled() {
  return knobs().flops_per_s > 0 || knobs().memory_bytes_per_s > 0;
}

// That of what takes longer, arithmetic or memory.
Clock::duration modelled_time(const Cost& cost) {
  const Knobs& knobs = emulated_cuda::knobs();
  double seconds = 0;
  if (knobs.flops_per_s > 0)
    seconds = cost.flops / knobs.flops_per_s;
  if (knobs.memory_bytes_per_s > 0)
    seconds = std::max(seconds, static_cast<double>(cost.memory_bytes) / knobs.memory_bytes_per_s);
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

} // namespace

Stream::Stream(int device, int priority, uint64_t index)
    : device_(device), priority_(priority), index_(index) {}

std::vector<uint64_t> Stream::submit(Work work) {
  std::vector<uint64_t> clock;
  {
    std::lock_guard lock(mutex_);
    if (capture_) {
      std::lock_guard graph_lock(capture_->mutex);
      capture_->work.push_back(std::move(work));
      return {};
    }
    clock = race::queued(index_, work);
    work.submitted = Clock::now();
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
  return clock;
}

void Stream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !busy_; });
  race::host_knows_stream(index_);
}

bool Stream::idle() {
  std::lock_guard lock(mutex_);
  const bool idle = queue_.empty() && !busy_;
  if (idle)
    race::host_knows_stream(index_);
  return idle;
}

std::shared_ptr<Graph> Stream::capture() {
  std::lock_guard lock(mutex_);
  return capture_;
}

void Stream::set_capture(std::shared_ptr<Graph> graph) {
  std::lock_guard lock(mutex_);
  capture_ = std::move(graph);
}

void Stream::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

void Stream::do_next(Work& work) {
  const Knobs& knobs = emulated_cuda::knobs();
  if (!seeded_ || seed_version_ != knobs.seed_version) {
    seeded_ = true;
    seed_version_ = knobs.seed_version;
    delays_.seed(knobs.seed * 1000003 + index_);
  }
  if (knobs.delay_us > 0 && delays_() % 2 == 0)
    std::this_thread::sleep_for(std::chrono::microseconds(delays_() % knobs.delay_us));
  free_at_ = is_modelled() ? std::max(free_at_, work.submitted) : Clock::now();
  if (work.compute) {
    counters().ops++;
    compute(work);
    return;
  }
  work.run();
  if (!work.instant)
    free_at_ = Clock::now();
}

// With a model of the device's speed, operators follow each other on the clock that the model says, so that it does
// not matter how late this thread is woken.
void Stream::compute(Work& work) {
  const Knobs& knobs = emulated_cuda::knobs();
  const auto start = Clock::now();
  if (knobs.compute || work.needed)
    work.run();
  if (knobs.slowdown > 1)
    std::this_thread::sleep_for((Clock::now() - start) * (knobs.slowdown - 1));
  if (!is_modelled()) {
    free_at_ = Clock::now();
    return;
  }
  free_at_ += modelled_time(work.cost);
  if (knobs.compute)
    free_at_ = std::max(free_at_, Clock::now());
  std::this_thread::sleep_until(free_at_);
}

Clock::time_point Stream::now() const {
  return free_at_;
}

void Stream::not_before(Clock::time_point time) {
  free_at_ = std::max(free_at_, time);
}

void Stream::run(const std::shared_ptr<Stream>& stream) {
  device_now = stream->device_;
  for (;;) {
    Work work;
    {
      std::unique_lock lock(stream->mutex_);
      stream->changed_.wait(lock, [&] { return stream->closed_ || !stream->queue_.empty(); });
      if (stream->queue_.empty())
        return;
      work = std::move(stream->queue_.front());
      stream->queue_.pop_front();
      stream->busy_ = true;
    }
    stream->do_next(work);
    work = {};
    {
      std::lock_guard lock(stream->mutex_);
      stream->busy_ = false;
    }
    stream->changed_.notify_all();
  }
}

std::shared_ptr<Stream> create_stream(int device, int priority) {
  static uint64_t created = 0;
  std::lock_guard lock(streams_mutex);
  auto stream = std::make_shared<Stream>(device, priority, created++);
  streams()[stream.get()] = stream;
  // Never joined: it may still wait for work when the process ends.
  std::thread([stream] { Stream::run(stream); }).detach();
  return stream;
}

bool destroy_stream(cudaStream_t handle) {
  std::lock_guard lock(streams_mutex);
  const auto found = streams().find(reinterpret_cast<Stream*>(handle));
  if (found == streams().end())
    return false;
  found->second->close();
  streams().erase(found);
  return true;
}

std::shared_ptr<Stream> stream_of(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy)
    return default_stream(device_now);
  if (handle == cudaStreamPerThread)
    return thread_stream(device_now);
  std::lock_guard lock(streams_mutex);
  const auto found = streams().find(reinterpret_cast<Stream*>(handle));
  return found == streams().end() ? nullptr : found->second;
}

cudaStream_t handle_of(const std::shared_ptr<Stream>& stream) {
  return reinterpret_cast<cudaStream_t>(stream.get());
}

namespace {

std::vector<std::shared_ptr<Stream>> all_streams() {
  std::lock_guard lock(streams_mutex);
  std::vector<std::shared_ptr<Stream>> all;
  for (const auto& [_, stream] : streams())
    all.push_back(stream);
  return all;
}

} // namespace

void end_capture(const std::shared_ptr<Graph>& graph) {
  for (const auto& stream : all_streams())
    if (stream->capture() == graph)
      stream->set_capture(nullptr);
}

void synchronize_device(int device) {
  for (const auto& stream : all_streams())
    if (device < 0 || stream->device() == device)
      stream->synchronize();
}

int current_device() {
  return device_now;
}

bool set_current_device(int device) {
  if (device < 0 || device >= knobs().devices)
    return false;
  device_now = device;
  return true;
}

} // namespace emulated_cuda
