// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <vector>

#include "swap/device.h"

namespace torchlms {

// Events of one device, used again. Waiting for one does not spin. Thread-safe; never destroyed.
class EventPool {
 public:
  explicit EventPool(c10::DeviceIndex device) : device_(device) {}

  // Everything that these streams have been given so far.
  FencePtr fence(c10::ArrayRef<cudaStream_t> streams);

 private:
  friend class EventFence;
  cudaEvent_t take();
  void give_back(cudaEvent_t event);

  const c10::DeviceIndex device_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> idle_; // guarded by mutex_
};

} // namespace torchlms
