// SPDX-License-Identifier: BSD-3-Clause
// Tells the race detector which blocks PyTorch's caching allocator gives away: the runtime sees segments.
#include <c10/cuda/CUDACachingAllocator.h>

#include "race/detector.h"

namespace {

void follow(const c10::cuda::CUDACachingAllocator::TraceEntry& entry) {
  using Entry = c10::cuda::CUDACachingAllocator::TraceEntry;
  const auto* begin = reinterpret_cast<const char*>(entry.addr_);
  if (entry.action_ == Entry::ALLOC)
    emulated_cuda::race::block_allocated(begin, entry.size_);
  else if (entry.action_ == Entry::FREE_REQUESTED)
    emulated_cuda::race::block_freed(begin, entry.size_);
}

} // namespace

extern "C" __attribute__((visibility("default"))) void emulated_cuda_observe_allocator() {
  static bool observed = false;
  auto* allocator = c10::cuda::CUDACachingAllocator::allocator.load();
  if (observed || allocator == nullptr || !allocator->initialized())
    return;
  observed = true;
  allocator->attachAllocatorTraceTracker(&follow);
}
