// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/copy_stream.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/ScopeExit.h>

namespace torchlms {

void CopyStreams::copy(void* to, const void* from, Bytes size, cudaMemcpyKind kind) {
  const c10::cuda::CUDAGuard guard(device_);
  const Lane lane = take();
  const auto idle = c10::make_scope_exit([&] { give_back(lane); });
  C10_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(size), kind, lane.stream));
  C10_CUDA_CHECK(cudaEventRecord(lane.done, lane.stream));
  C10_CUDA_CHECK(cudaEventSynchronize(lane.done)); // orders the copy before the end of the chunk
}

CopyStreams::Lane CopyStreams::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      const Lane lane = idle_.back();
      idle_.pop_back();
      return lane;
    }
  }
  Lane lane;
  // Non-blocking: the legacy default stream would wait for it, and it for that.
  C10_CUDA_CHECK(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking));
  C10_CUDA_CHECK(cudaEventCreateWithFlags(&lane.done, cudaEventDisableTiming | cudaEventBlockingSync));
  return lane;
}

void CopyStreams::give_back(const Lane& lane) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(lane);
}

} // namespace torchlms
