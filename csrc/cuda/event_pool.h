// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>
#include <cuda_runtime_api.h>

#include <mutex>
#include <vector>

#include "swap/device.h"

namespace torchlms {

// Events of one device, used again. Waiting for one does not spin. Thread-safe; never destroyed.
class EventPool {
 public:
  // flags: of cudaEventCreateWithFlags.
  EventPool(c10::DeviceIndex device, unsigned flags) : device_(device), flags_(flags) {}

  // Records an event in the stream.
  cudaEvent_t record(cudaStream_t stream);
  void give_back(cudaEvent_t event);

 private:
  const c10::DeviceIndex device_;
  const unsigned flags_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> idle_; // guarded by mutex_
};

// Points in the work of streams, to wait for.
class Fences {
 public:
  explicit Fences(c10::DeviceIndex device)
      : events_(device, cudaEventDisableTiming | cudaEventBlockingSync) {}
  // Everything that these streams have been given so far.
  FencePtr fence(c10::ArrayRef<cudaStream_t> streams);

 private:
  EventPool events_;
};

// Points in the work of streams, with the time at which the device came to them.
class TimedEvents {
 public:
  explicit TimedEvents(c10::DeviceIndex device) : events_(device, cudaEventBlockingSync) {}
  MomentPtr now(cudaStream_t stream);

 private:
  EventPool events_;
};

} // namespace torchlms
