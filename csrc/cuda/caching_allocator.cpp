// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/caching_allocator.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace torchlms {

// Note [CUDA's caching allocator]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The native allocator stays in charge of all memory; we stand in front of it and decide when it is asked.
// Its own memory fraction is set to the budget, so that reserved memory cannot exceed it, whatever we get
// wrong: then it frees what it has cached, and when that is not enough it raises, and we evict.
//
// An allocation with a budget goes through three stages.
//   1. Allocated bytes alone would exceed the budget: reclaim, and only then ask. No error is raised inside
//      the native allocator, whose way to an error frees every cached block and waits for the device.
//   2. It is asked, and raises all the same: memory is fragmented, or others take some of the device.
//      As much as was asked for must be freed before it is asked again.
//   3. Nothing is left to reclaim: it is asked once more, and then the error is ours.
// cuDNN takes another algorithm, with other bits, when its workspace is refused, so an error may only come
// out of here when nothing can be evicted.
//
// Reclaim and describe run with no lock held: neither ours nor the native allocator's.
//
// While a graph is captured nothing may wait: the call is handed on as it is.

namespace {

using Native = c10::cuda::CUDACachingAllocator::CUDAAllocator;

// True while this thread runs a policy: what the policy allocates must not start another reclaim.
thread_local bool in_policy = false;

class InPolicy {
 public:
  InPolicy() {
    in_policy = true;
  }
  ~InPolicy() {
    in_policy = false;
  }
  InPolicy(const InPolicy&) = delete;
  InPolicy& operator=(const InPolicy&) = delete;
};

// What it will reserve at most for a block that it has to make: see kMinLargeAlloc and kRoundLarge there.
Bytes segment_bytes(Bytes size) {
  constexpr Bytes kMiB = Bytes{1} << 20;
  if (size <= kMiB) {
    return 2 * kMiB;
  }
  return size < 10 * kMiB ? 20 * kMiB : (size + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
}

bool is_capturing() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

} // namespace

CachingAllocator& CachingAllocator::get() {
  static CachingAllocator* const allocator = [] {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    Native* native = c10::cuda::CUDACachingAllocator::get();
    TORCH_CHECK(
        native->name() == "native",
        "torchlms needs PyTorch's native CUDA allocator; the one in use is ",
        native->name(),
        ".");
    auto* made = new CachingAllocator(*native);
    made->follow();
    return made;
  }();
  return *allocator;
}

CachingAllocator::CachingAllocator(Native& native) : NewerMethods(native) {}

// Trackers cannot be detached: this is done once, and goes on counting without a budget too.
void CachingAllocator::follow() {
  native_.attachAllocatorTraceTracker([this](const DeviceMemory::TraceEntry& entry) {
    memory_.at(static_cast<size_t>(entry.device_)).note(entry);
  });
  for (const auto& segment : native_.snapshot({0, 0}, /*include_traces=*/false).segments) {
    memory_.at(static_cast<size_t>(segment.device)).note_older(segment);
  }
}

DeviceMemory& CachingAllocator::memory(c10::DeviceIndex device) {
  return memory_.at(static_cast<size_t>(device));
}

Bytes CachingAllocator::reserved_bytes(c10::DeviceIndex device) {
  return native_.getDeviceStats(device).reserved_bytes[0].current;
}

// Requires: mutex_ held.
void CachingAllocator::install() {
  c10::cuda::CUDACachingAllocator::allocator.store(this);
  c10::SetAllocator(c10::DeviceType::CUDA, this, /*priority=*/255);
}

// Requires: mutex_ held.
void CachingAllocator::remove() {
  Native* expected = this;
  // Unless somebody has put another one in front meanwhile.
  if (c10::cuda::CUDACachingAllocator::allocator.compare_exchange_strong(expected, &native_)) {
    c10::SetAllocator(c10::DeviceType::CUDA, &native_, /*priority=*/255);
  }
}

void CachingAllocator::set_budget(
    c10::DeviceIndex device, Bytes budget, ReclaimFn reclaim, DescribeFn describe) {
  const std::lock_guard lock(mutex_);
  Bytes& total = total_[device];
  if (total == 0) {
    total = static_cast<Bytes>(native_.getMemoryInfo(device).second);
  }
  budget = std::clamp<Bytes>(budget, 1, total);
  DeviceMemory& memory = this->memory(device);
  if (memory.budget_bytes() == 0) {
    former_fraction_[device] = native_.getMemoryFraction(device);
    if (num_budgets_++ == 0) {
      install();
    }
  }
  const bool is_new = memory.budget_bytes() != budget;
  memory.set_budget(
      budget,
      std::make_shared<const DeviceMemory::Policy>(
          DeviceMemory::Policy{std::move(reclaim), std::move(describe)}));
  if (is_new) {
    native_.setMemoryFraction(static_cast<double>(budget) / static_cast<double>(total), device);
    if (reserved_bytes(device) > budget) {
      native_.emptyCache({0, 0});
    }
  }
}

void CachingAllocator::clear_budget(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  DeviceMemory& memory = this->memory(device);
  if (memory.budget_bytes() == 0) {
    return;
  }
  memory.set_budget(0, nullptr);
  native_.setMemoryFraction(former_fraction_[device], device);
  if (--num_budgets_ == 0) {
    remove();
  }
}

template <class F>
auto CachingAllocator::within_budget(size_t size, const F& allocate) -> decltype(allocate()) {
  const c10::DeviceIndex device = c10::cuda::current_device();
  DeviceMemory& memory = this->memory(device);
  if (memory.budget_bytes() == 0 || size == 0 || is_capturing()) {
    return allocate();
  }
  const Bytes rounded = DeviceMemory::rounded(size);
  Bytes limit = memory.budget_bytes();
  std::string cause;
  for (bool is_exhausted = false;;) {
    Bytes missing = memory.held_bytes() + rounded - limit;
    if (missing <= 0 || (is_exhausted && !cause.empty())) {
      try {
        return allocate();
      } catch (const c10::OutOfMemoryError& error) {
        cause = error.what_without_backtrace();
        memory.note_waste(memory.budget_bytes() - memory.held_bytes()); // with these bytes it went wrong
        limit = std::min(limit, memory.held_bytes()); // as much must go as was asked for
        missing = rounded;
      }
    }
    const auto policy = memory.policy();
    if (!policy) {
      return allocate(); // the budget was cleared meanwhile
    }
    if (is_exhausted || in_policy) {
      throw_out_of_memory(device, size, *policy, cause);
    }
    // One more attempt follows when nothing is left: another thread may have freed something.
    const InPolicy guard;
    is_exhausted = !policy->reclaim || !policy->reclaim(missing);
  }
}

void CachingAllocator::throw_out_of_memory(
    c10::DeviceIndex device, size_t size, const DeviceMemory::Policy& policy, const std::string& cause) {
  std::string ending = "Asked for while room was being made for another tensor.";
  if (!in_policy) {
    const InPolicy guard;
    ending = policy.describe ? policy.describe(static_cast<Bytes>(size)) : "Raise the budget.";
  }
  C10_THROW_ERROR(
      OutOfMemoryError,
      c10::str(
          "CUDA out of memory. Tried to allocate ",
          size,
          " bytes. Tier: device (cuda:",
          static_cast<int>(device),
          "); budget: ",
          memory(device).budget_bytes(),
          " bytes; held: ",
          memory(device).held_bytes(),
          " bytes, ",
          memory(device).counter().managed(),
          " of them managed; reserved: ",
          reserved_bytes(device),
          " bytes. ",
          cause.empty() ? "" : "PyTorch's allocator says: " + cause + " ",
          ending));
}

c10::DataPtr CachingAllocator::try_allocate(size_t size) {
  const c10::DeviceIndex device = c10::cuda::current_device();
  const Bytes budget = memory(device).budget_bytes();
  const Bytes rounded = DeviceMemory::rounded(size);
  if (budget > 0 && size > 0) {
    if (memory(device).held_bytes() + rounded > budget) {
      return native_.allocate(0);
    }
    if (reserved_bytes(device) + segment_bytes(rounded) > budget) {
      size_t largest = 1; // 0 would ask the device
      native_.cacheInfo(device, &largest);
      if (static_cast<Bytes>(largest) < rounded) {
        return native_.allocate(0);
      }
    }
  }
  try {
    return native_.allocate(size);
  } catch (const c10::OutOfMemoryError&) {
    return native_.allocate(0);
  }
}

c10::DataPtr CachingAllocator::allocate(size_t size) {
  return within_budget(size, [&] { return native_.allocate(size); });
}

void* CachingAllocator::raw_alloc(size_t size) {
  return within_budget(size, [&] { return native_.raw_alloc(size); });
}

void* CachingAllocator::raw_alloc_with_stream(size_t size, cudaStream_t stream) {
  return within_budget(size, [&] { return native_.raw_alloc_with_stream(size, stream); });
}

c10::DataPtr CachingAllocator::allocateWithAddress(size_t size, void* address) {
  return [&](auto& native) -> c10::DataPtr {
    if constexpr (requires { native.allocateWithAddress(size, address); }) {
      return within_budget(size, [&] { return native.allocateWithAddress(size, address); });
    }
    return {};
  }(native_);
}

} // namespace torchlms
