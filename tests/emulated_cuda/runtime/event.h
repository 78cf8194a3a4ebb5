// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <memory>
#include <mutex>

#include "stream.h"

namespace emulated_cuda {

// Stands for the last record() of it. Work queued earlier keeps the state alive after the event is destroyed.
class Event : public std::enable_shared_from_this<Event> {
 public:
  explicit Event(bool timed) : timed_(timed) {}

  void record(Stream& stream);
  void wait_on(Stream& stream);
  void synchronize();
  bool done();

  // Milliseconds from `start` to this; an error where CUDA has one.
  cudaError_t elapsed_since(Event& start, float& ms);

 private:
  const bool timed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t records_ = 0; // asked for
  uint64_t reached_ = 0; // the last that a stream came to
  std::weak_ptr<Graph> graph_; // the capture that the last record was part of
  std::vector<uint64_t> clock_; // of the last record, for the race detector
  Clock::time_point time_;
};

cudaEvent_t create_event(bool timed);
bool destroy_event(cudaEvent_t handle);
std::shared_ptr<Event> event_of(cudaEvent_t handle);

} // namespace emulated_cuda
