// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Allocator.h>

#include "export.h"
#include "swap/device.h"

namespace torchlms {

// The CPU's caching, counting allocator with a budget; see Note [Budget allocator] in the source.
//
// Thread-safe, safe under fork (a child keeps counting but has no budget and reclaims nothing).
// Installed once at import by install(), never removed, never destroyed. Without a budget it only
// counts: blocks come from and go back to the allocator that was there before.
// Failure: c10::OutOfMemoryError.
class TORCHLMS_EXPORT BudgetAllocator final : public c10::Allocator {
 public:
  static BudgetAllocator& get();
  // Makes it PyTorch's CPU allocator.
  void install();

  c10::DataPtr allocate(size_t size) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* dest, const void* src, std::size_t count) const override;

  c10::DataPtr try_allocate(Bytes size);
  Device::Block block_of(const void* data) const;
  uint64_t next_serial() const;
  Bytes held_bytes() const;
  Bytes cached_bytes() const;
  Bytes reserved_bytes() const; // held + cached, read together: what the budget bounds
  void add_managed_bytes(Bytes delta);
  Bytes managed_bytes() const;
  Device::Peaks take_peaks();
  void set_budget(Bytes budget, ReclaimFn reclaim, DescribeFn describe);
  void clear_budget();
  Bytes budget_bytes() const; // 0: none
  void trim(); // gives every cached block back to the system

 private:
  BudgetAllocator();
  ~BudgetAllocator() override = default;
  struct Impl;
  Impl* impl_; // leaked: tensors may be freed by static destructors
};

} // namespace torchlms
