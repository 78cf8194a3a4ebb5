// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/budget_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "cpu/budgeted_memory.h"

namespace torchlms {

// Note [Budget allocator]
// ~~~~~~~~~~~~~~~~~~~~~~~
// oneDNN and the LSTM kernels allocate and free by raw pointer, and free pointers that the former
// allocator gave out before us. So context == data, there is one deleter, and pointers that are not
// ours are passed on.
//
// Reclaim and describe run with no lock held, on a shared copy: clear_budget() on another thread
// must not destroy what runs here.
//
// All locks are held over fork(), so the child finds everything consistent. It drops the budget:
// the threads and files of the session that would reclaim exist in the parent only.

namespace {

struct ReclaimPolicy {
  ReclaimFn reclaim;
  DescribeFn describe;
};

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

} // namespace

struct BudgetAllocator::Impl {
  BudgetedMemory memory{*c10::GetCPUAllocator()};

  std::mutex policy_mutex; // taken before any lock of memory
  // Guarded by policy_mutex. Not null while memory has a budget.
  std::shared_ptr<const ReclaimPolicy> policy;
  std::shared_ptr<const ReclaimPolicy> parents_policy;

  static void release(void* data);
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  std::shared_ptr<const ReclaimPolicy> copy_policy();
  void* allocate(size_t size);
  [[noreturn]] void throw_out_of_memory(size_t size, const ReclaimPolicy& used);
};

void BudgetAllocator::Impl::release(void* data) {
  get().impl_->memory.release(data);
}

std::shared_ptr<const ReclaimPolicy> BudgetAllocator::Impl::copy_policy() {
  std::lock_guard<std::mutex> lock(policy_mutex);
  return policy;
}

void* BudgetAllocator::Impl::allocate(size_t size) {
  bool exhausted = false;
  for (;;) {
    const BudgetedMemory::Attempt attempt = memory.attempt(size);
    if (attempt.data != nullptr) {
      return attempt.data;
    }
    const auto used = copy_policy();
    if (used == nullptr) {
      continue; // the budget was cleared meanwhile
    }
    if (exhausted || in_policy) {
      throw_out_of_memory(size, *used);
    }
    // One more attempt follows when nothing is left: another thread may have freed something.
    InPolicy guard;
    exhausted = !used->reclaim || !used->reclaim(attempt.missing_bytes);
  }
}

void BudgetAllocator::Impl::throw_out_of_memory(size_t size, const ReclaimPolicy& used) {
  c10::profiledCPUMemoryReporter().OutOfMemory(size);
  std::string ending = "Asked for while room was being made for another tensor.";
  if (!in_policy) {
    InPolicy guard;
    ending = used.describe ? used.describe(static_cast<Bytes>(size)) : "Raise the budget.";
  }
  C10_THROW_ERROR(
      OutOfMemoryError,
      c10::str(
          "CPU out of memory. DefaultCPUAllocator: can't allocate memory: you tried to allocate ",
          size,
          " bytes. Tier: device (cpu); budget: ",
          memory.budget_bytes(),
          " bytes; held: ",
          memory.counter().held(),
          " bytes, ",
          memory.counter().managed(),
          " of them managed. ",
          ending));
}

void BudgetAllocator::Impl::before_fork() {
  Impl& impl = *get().impl_;
  impl.policy_mutex.lock();
  impl.memory.lock_for_fork();
}

void BudgetAllocator::Impl::after_fork_in_parent() {
  Impl& impl = *get().impl_;
  impl.memory.unlock_after_fork();
  impl.policy_mutex.unlock();
}

void BudgetAllocator::Impl::after_fork_in_child() {
  Impl& impl = *get().impl_;
  in_policy = false;
  // Never destroyed: that could wait for threads which the child does not have.
  impl.parents_policy = std::exchange(impl.policy, nullptr);
  impl.memory.unlock_after_fork();
  // Gives the cache back too: else each write of the parent to a cached page would copy it.
  impl.memory.set_budget(0);
  impl.policy_mutex.unlock();
}

BudgetAllocator& BudgetAllocator::get() {
  static BudgetAllocator* const allocator = new BudgetAllocator;
  return *allocator;
}

BudgetAllocator::BudgetAllocator() : impl_(new Impl) {
  pthread_atfork(&Impl::before_fork, &Impl::after_fork_in_parent, &Impl::after_fork_in_child);
}

void BudgetAllocator::install() {
  // The highest priority, so that no later registration silently takes the count away.
  c10::SetCPUAllocator(this, std::numeric_limits<uint8_t>::max());
}

c10::DataPtr BudgetAllocator::allocate(size_t size) {
  void* data = size == 0 ? nullptr : impl_->allocate(size);
  return {data, data, &Impl::release, c10::Device(c10::DeviceType::CPU)};
}

c10::DataPtr BudgetAllocator::try_allocate(Bytes size) {
  void* data = size == 0 ? nullptr : impl_->memory.attempt(static_cast<size_t>(size)).data;
  return {data, data, &Impl::release, c10::Device(c10::DeviceType::CPU)};
}

c10::DeleterFnPtr BudgetAllocator::raw_deleter() const {
  return &Impl::release;
}

void BudgetAllocator::copy_data(void* dest, const void* src, std::size_t count) const {
  default_copy_data(dest, src, count);
}

Device::Block BudgetAllocator::block_of(const void* data) const {
  return impl_->memory.block_of(data);
}

uint64_t BudgetAllocator::next_serial() const {
  return impl_->memory.next_serial();
}

Bytes BudgetAllocator::held_bytes() const {
  return impl_->memory.counter().held();
}

Bytes BudgetAllocator::cached_bytes() const {
  return impl_->memory.cached_bytes();
}

Bytes BudgetAllocator::reserved_bytes() const {
  return impl_->memory.reserved_bytes();
}

void BudgetAllocator::add_managed_bytes(Bytes delta) {
  impl_->memory.counter().add_managed(delta);
}

Bytes BudgetAllocator::managed_bytes() const {
  return impl_->memory.counter().managed();
}

Device::Peaks BudgetAllocator::take_peaks() {
  return impl_->memory.counter().take_peaks();
}

void BudgetAllocator::set_budget(Bytes budget, ReclaimFn reclaim, DescribeFn describe) {
  std::shared_ptr<const ReclaimPolicy> policy =
      std::make_shared<const ReclaimPolicy>(ReclaimPolicy{std::move(reclaim), std::move(describe)});
  // Declared before the lock: the old policy may own anything, and is destroyed after it.
  std::lock_guard<std::mutex> lock(impl_->policy_mutex);
  impl_->policy.swap(policy);
  impl_->memory.set_budget(std::max<Bytes>(1, budget)); // 0 would be none at all
}

void BudgetAllocator::clear_budget() {
  std::shared_ptr<const ReclaimPolicy> policy; // outlives the lock, as above
  std::lock_guard<std::mutex> lock(impl_->policy_mutex);
  impl_->memory.set_budget(0);
  impl_->policy.swap(policy);
}

Bytes BudgetAllocator::budget_bytes() const {
  return impl_->memory.budget_bytes();
}

void BudgetAllocator::trim() {
  impl_->memory.trim();
}

} // namespace torchlms
