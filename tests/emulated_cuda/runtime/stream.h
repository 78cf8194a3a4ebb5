// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace emulated_cuda {

// Bytes that a piece of work reads or writes.
struct Access {
  const char* begin = nullptr;
  uint64_t bytes = 0;
  bool write = false;
};

using Clock = std::chrono::steady_clock;

// What an operator costs on the device that is emulated.
struct Cost {
  double flops = 0;
  uint64_t memory_bytes = 0; // read and written
};

struct Work {
  std::string name{};
  std::function<void()> run{};
  std::vector<Access> accesses{};
  bool compute = false; // an operator, which the slowdown applies to
  bool needed = false; // the host wants its results
  bool instant = false; // takes no time on the device
  Cost cost{};
  Clock::time_point submitted{};
  bool replayed = false; // of a graph, whose memory pool keeps blocks that look free
};

// What streams were given while they captured, in an order in which it may run.
struct Graph {
  uint64_t id = 0;
  const void* origin = nullptr; // the stream whose capture it is
  std::mutex mutex;
  std::vector<Work> work;
  bool invalid = false;
};

// A queue of work and the thread that does it, in order.
class Stream {
 public:
  Stream(int device, int priority, uint64_t index);

  // Returns the race detector's clock of the stream with this work.
  std::vector<uint64_t> submit(Work work);
  void synchronize();
  bool idle();
  // The thread ends once the queue is empty.
  void close();

  std::shared_ptr<Graph> capture();
  void set_capture(std::shared_ptr<Graph> graph);

  int device() const {
    return device_;
  }
  int priority() const {
    return priority_;
  }
  uint64_t index() const {
    return index_;
  }

  // When the work done so far ended. Of the stream's thread alone.
  Clock::time_point now() const;
  // What follows starts after that. The same.
  void not_before(Clock::time_point time);

  static void run(const std::shared_ptr<Stream>& stream);

 private:
  void do_next(Work& work);
  void compute(Work& work);

  const int device_;
  const int priority_;
  const uint64_t index_;
  std::mt19937_64 delays_; // of this stream's thread alone
  bool seeded_ = false;
  uint64_t seed_version_ = 0;
  Clock::time_point free_at_{}; // of this stream's thread alone
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  bool busy_ = false;
  bool closed_ = false;
  std::shared_ptr<Graph> capture_; // null: work runs
};

std::shared_ptr<Stream> create_stream(int device, int priority);
bool destroy_stream(cudaStream_t handle);

// Null for a handle that is none. The default streams are those of the current device and thread.
std::shared_ptr<Stream> stream_of(cudaStream_t handle);
cudaStream_t handle_of(const std::shared_ptr<Stream>& stream);

// All streams that take part in a capture run their work again.
void end_capture(const std::shared_ptr<Graph>& graph);

void synchronize_device(int device); // -1: all
int current_device();
bool set_current_device(int device);

} // namespace emulated_cuda
