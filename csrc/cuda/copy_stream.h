// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <mutex>
#include <vector>

#include "trace/types.h"

namespace torchlms {

// Copies between the memory of one device and the host, in one direction, on streams of its own: not those of
// PyTorch's pool, which the program may be using. As many streams as threads copy at once. Thread-safe;
// never destroyed.
class CopyStreams {
 public:
  explicit CopyStreams(c10::DeviceIndex device) : device_(device) {}

  // Blocks until the bytes are there.
  void copy(void* to, const void* from, Bytes size, cudaMemcpyKind kind);

 private:
  struct Lane {
    cudaStream_t stream = nullptr;
    cudaEvent_t done = nullptr;
  };
  Lane take();
  void give_back(const Lane& lane);

  const c10::DeviceIndex device_;
  std::mutex mutex_;
  std::vector<Lane> idle_; // guarded by mutex_
};

} // namespace torchlms
