// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/budgeted_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/Flags.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <cstring>
#include <limits>

C10_DECLARE_bool(caffe2_cpu_allocator_do_zero_fill);
C10_DECLARE_bool(caffe2_cpu_allocator_do_junk_fill);

namespace torchlms {

// Note [Budgeted memory]
// ~~~~~~~~~~~~~~~~~~~~~~
// Without a budget every block comes from the former allocator (alignment, fill flags and profiler
// reports are then PyTorch's own) and is entered in a registry: that alone is the cost for a process
// that never opens a scope.
//
// With a budget, large blocks are mappings, kept when freed: mapping afresh faults in every page and
// doubled the time of a step. held + cached <= budget holds because everything that may raise the
// sum checks and counts under one mutex_. Frees of small blocks only lower it and take no mutex_. A
// small block is counted before it is asked of the former allocator and until it was returned.
//
// An allocation that saw no budget may be counted just after a budget was set, so held may be above
// it: each later step makes the cache fit again.

namespace {

using Origin = BlockRegistry::Origin;

bool is_large(size_t size) {
  return size >= static_cast<size_t>(BudgetedMemory::kLargeBytes);
}

// Mostly negative numbers in disguise. The former allocator knows what to say.
bool is_absurd(size_t size) {
  return size > static_cast<size_t>(std::numeric_limits<Bytes>::max() / 2);
}

Bytes counted_bytes(size_t size) {
  return is_large(size) ? PageMap::round_up(static_cast<Bytes>(size)) : static_cast<Bytes>(size);
}

// What PyTorch's own allocator does for these two flags (c10/core/impl/alloc_cpu.cpp).
void fill_as_flagged(void* data, size_t size) {
  if (FLAGS_caffe2_cpu_allocator_do_zero_fill) {
    std::memset(data, 0, size);
  } else if (FLAGS_caffe2_cpu_allocator_do_junk_fill) {
    constexpr int64_t kJunk = 0x7fedbeef7fedbeef;
    auto* words = static_cast<int64_t*>(data);
    std::fill_n(words, size / sizeof(kJunk), kJunk);
    std::memcpy(words + size / sizeof(kJunk), &kJunk, size % sizeof(kJunk));
  }
}

} // namespace

BudgetedMemory::BudgetedMemory(c10::Allocator& former)
    : former_(former), release_to_former_(former.raw_deleter()) {
  TORCH_CHECK(
      release_to_former_ != nullptr,
      "torchlms needs a CPU allocator whose blocks are all freed by one function; the one in place "
      "has none.");
}

BudgetedMemory::Attempt BudgetedMemory::attempt(size_t size) {
  if (budget_.load(std::memory_order_relaxed) == 0 || is_absurd(size)) {
    return {allocate_unbounded(size)};
  }
  const Bytes counted = counted_bytes(size);
  std::unique_lock<std::mutex> lock(mutex_);
  if (budget_ == 0) {
    lock.unlock();
    return {allocate_unbounded(size)};
  }
  const Bytes missing = counter_.held() + counted - budget_;
  if (missing > 0) {
    return {nullptr, missing};
  }
  void* mapped = nullptr;
  if (is_large(size)) {
    mapped = take_mapped(counted);
    if (mapped == nullptr) {
      return {nullptr, counted}; // the budget has room, the system has not
    }
  }
  fit_cache(counted);
  counter_.add(counted);
  lock.unlock();
  return {mapped != nullptr ? hand_out_mapped(mapped, size) : allocate_counted(size)};
}

void* BudgetedMemory::allocate_unbounded(size_t size) {
  c10::DataPtr block = former_.allocate(size);
  const Bytes counted = counted_bytes(size);
  registry_.insert(block.get(), counted, Origin::kFormerAllocator);
  counter_.add(counted);
  return block.release_context();
}

void* BudgetedMemory::allocate_counted(size_t size) {
  const Bytes counted = counted_bytes(size);
  auto uncount = c10::make_scope_exit([&] { counter_.subtract(counted); });
  c10::DataPtr block = former_.allocate(size);
  registry_.insert(block.get(), counted, Origin::kFormerAllocator);
  uncount.release();
  return block.release_context();
}

void* BudgetedMemory::take_mapped(Bytes size) {
  if (void* data = cache_.take(size)) {
    return data;
  }
  if (counter_.held() + cache_.bytes() + size <= budget_) {
    if (void* data = cache_.map(size)) {
      return data;
    }
  }
  return cache_.gather(size);
}

void* BudgetedMemory::hand_out_mapped(void* data, size_t size) {
  registry_.insert(data, counted_bytes(size), Origin::kMapped);
  fill_as_flagged(data, size);
  c10::profiledCPUMemoryReporter().New(data, size);
  return data;
}

void BudgetedMemory::release(void* data) {
  const auto block = registry_.erase(data);
  if (!block) {
    release_to_former_(data);
  } else if (block->origin == Origin::kFormerAllocator) {
    release_to_former_(data);
    counter_.subtract(block->counted_bytes);
  } else {
    c10::profiledCPUMemoryReporter().Delete(data);
    std::lock_guard<std::mutex> lock(mutex_);
    counter_.subtract(block->counted_bytes);
    cache_.put(data, block->counted_bytes);
    fit_cache(0);
  }
}

Device::Block BudgetedMemory::block_of(const void* data) const {
  const auto block = registry_.find(data);
  return block ? Device::Block{block->counted_bytes, block->serial} : Device::Block{};
}

Bytes BudgetedMemory::cached_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return cache_.bytes();
}

Bytes BudgetedMemory::reserved_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counter_.held() + cache_.bytes();
}

void BudgetedMemory::set_budget(Bytes budget) {
  std::lock_guard<std::mutex> lock(mutex_);
  budget_ = budget;
  fit_cache(0);
}

void BudgetedMemory::trim() {
  std::lock_guard<std::mutex> lock(mutex_);
  cache_.give_back(cache_.bytes());
}

void BudgetedMemory::lock_for_fork() {
  mutex_.lock();
  registry_.lock_all();
}

void BudgetedMemory::unlock_after_fork() {
  registry_.unlock_all();
  mutex_.unlock();
}

// Requires: mutex_ is held. `coming_bytes` are about to be held.
void BudgetedMemory::fit_cache(Bytes coming_bytes) {
  const Bytes allowed = std::max<Bytes>(0, budget_ - counter_.held() - coming_bytes);
  if (cache_.bytes() > allowed) {
    cache_.give_back(cache_.bytes() - allowed);
  }
}

} // namespace torchlms
