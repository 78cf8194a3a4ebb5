// SPDX-License-Identifier: BSD-3-Clause
#include "event.h"

#include "race/detector.h"

#include <algorithm>
#include <unordered_map>

namespace emulated_cuda {
namespace {

std::mutex events_mutex;

std::unordered_map<Event*, std::shared_ptr<Event>>& events() {
  static auto& all = *new std::unordered_map<Event*, std::shared_ptr<Event>>;
  return all;
}

} // namespace

void Event::record(Stream& stream) {
  std::lock_guard lock(mutex_);
  const auto graph = stream.capture();
  graph_ = graph;
  if (graph)
    return;
  const auto reach = [self = shared_from_this(), &stream, number = ++records_] {
    {
      std::lock_guard lock(self->mutex_);
      if (number > self->reached_) {
        self->reached_ = number;
        self->time_ = stream.now();
      }
    }
    self->changed_.notify_all();
  };
  clock_ = stream.submit({.name = "cudaEventRecord", .run = reach, .instant = true});
}

void Event::wait_on(Stream& stream) {
  std::lock_guard lock(mutex_);
  if (const auto graph = graph_.lock()) {
    stream.set_capture(graph); // it joins; the graph keeps the order of submission
    return;
  }
  race::ordered_after(stream.index(), clock_);
  if (reached_ >= records_)
    return;
  const auto wait = [self = shared_from_this(), &stream, number = records_] {
    std::unique_lock lock(self->mutex_);
    self->changed_.wait(lock, [&] { return self->reached_ >= number; });
    stream.not_before(self->time_);
  };
  stream.submit({.name = "cudaStreamWaitEvent", .run = wait, .instant = true});
}

void Event::synchronize() {
  std::unique_lock lock(mutex_);
  const auto clock = clock_;
  changed_.wait(lock, [&, number = records_] { return reached_ >= number; });
  race::host_knows(clock);
}

bool Event::done() {
  std::lock_guard lock(mutex_);
  if (reached_ < records_)
    return false;
  race::host_knows(clock_);
  return true;
}

cudaError_t Event::elapsed_since(Event& start, float& ms) {
  if (!timed_ || !start.timed_ || records_ == 0 || start.records_ == 0)
    return cudaErrorInvalidResourceHandle;
  if (!done() || !start.done())
    return cudaErrorNotReady;
  ms = std::chrono::duration<float, std::milli>(time_ - start.time_).count();
  return cudaSuccess;
}

cudaEvent_t create_event(bool timed) {
  auto event = std::make_shared<Event>(timed);
  std::lock_guard lock(events_mutex);
  events()[event.get()] = event;
  return reinterpret_cast<cudaEvent_t>(event.get());
}

bool destroy_event(cudaEvent_t handle) {
  std::lock_guard lock(events_mutex);
  return events().erase(reinterpret_cast<Event*>(handle)) == 1;
}

std::shared_ptr<Event> event_of(cudaEvent_t handle) {
  std::lock_guard lock(events_mutex);
  const auto found = events().find(reinterpret_cast<Event*>(handle));
  return found == events().end() ? nullptr : found->second;
}

} // namespace emulated_cuda
