// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <mutex>

#include "cpu/block_cache.h"
#include "cpu/block_registry.h"
#include "swap/device.h"
#include "swap/held_counter.h"

namespace torchlms {

// Blocks of memory for tensors, counted, and held + cached bytes bounded where a budget is set.
// See Note [Budgeted memory].
//
// Thread-safe. Blocks belong to the caller until release(); the former allocator is not owned.
// Failure: what does not fit the budget is an Attempt without data; what the former allocator throws
// passes through. lock_for_fork() and unlock_after_fork() bracket a fork.
class BudgetedMemory {
 public:
  // Blocks of at least this size are made of whole pages, page-aligned, while a budget is set.
  static constexpr Bytes kLargeBytes = 64 << 10;

  // A block, or the number of bytes that must become free before it is worth trying again.
  struct Attempt {
    void* data = nullptr;
    Bytes missing_bytes = 0;
  };

  // Requires: `former` frees all its blocks by one raw deleter.
  explicit BudgetedMemory(c10::Allocator& former);

  // Requires: size > 0.
  Attempt attempt(size_t size);
  // Pointers that are not blocks of this object go to the former allocator.
  void release(void* data);
  Device::Block block_of(const void* data) const;
  uint64_t next_serial() const {
    return registry_.next_serial();
  }

  HeldCounter& counter() {
    return counter_;
  }
  Bytes budget_bytes() const {
    return budget_.load(std::memory_order_relaxed);
  }
  Bytes cached_bytes() const;
  Bytes reserved_bytes() const; // held + cached, read together

  void set_budget(Bytes budget); // 0: none
  void trim();

  void lock_for_fork();
  void unlock_after_fork();

 private:
  void* allocate_unbounded(size_t size);
  void* allocate_counted(size_t size);
  void* take_mapped(Bytes size);
  void* hand_out_mapped(void* data, size_t size);
  void fit_cache(Bytes coming_bytes);

  // Constant after construction.
  c10::Allocator& former_;
  const c10::DeleterFnPtr release_to_former_;

  // Own synchronisation.
  BlockRegistry registry_;
  HeldCounter counter_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  BlockCache cache_;
  std::atomic<Bytes> budget_{0}; // the fast path reads it without
};

} // namespace torchlms
