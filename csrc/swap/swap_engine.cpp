// SPDX-License-Identifier: BSD-3-Clause
#include "swap/swap_engine.h"

#include <chrono>
#include <utility>

#include <c10/util/ScopeExit.h>

namespace torchlms {

namespace {

Link::ReadyFn waits_for(const FencePtr& fence) {
  return fence ? [fence] { fence->wait(); } : Link::ReadyFn();
}

} // namespace

// Note [Swap engine]
//
// One storage moves through these states; every transition happens under SwapEngine::mutex_.
//
//   from          to            when                                        by
//   kDevice       kSwappingOut  swap_out, reclaim or relieve found that     the caller
//                               ours is the only reference
//   kSwappingOut  kSwappedOut   the last chunk is written; then, and only   link thread
//                               then, the device block is freed
//   kSwappingOut  kDevice       acquire came first (the copy is cancelled   acquirer
//                               and its extent dropped), or a write failed  link thread
//   kSwappedOut   kSwappingIn   prefetch or demand, block already allocated the caller
//   kSwappingIn   kDevice       the last chunk is read                      link thread
//   kSwappingIn   kSwappedOut   a read failed; the block is freed           link thread
//   kDevice       kSwappedOut   prefetched too early and evicted before its reclaimer
//                               first use: the copy still holds the bytes
//   kDevice       kDropped      drop found that ours is the only reference the caller
//   kDropped      kDevice       restore: the caller has made the bytes again the caller
//   any           discarded     the last handle died                        its destructor
//
// A copy in flight keeps its StorageState, and so the block and its lower copy, alive; the chunk
// functions touch only the raw pointer and the lower copy that they were given. On a device with queues the
// first chunk starts when the work that was queued before is done, and a chunk ends when its bytes have
// arrived: whatever happens here happens in the order of the host's time, and needs no event. Blocks are freed outside
// mutex_, and a copy's end shows in the state only after that, so that whoever waited finds the memory
// free. Managed bytes are lowered after the free and raised before the allocation, so that
// held - managed never shows a peak that is not there.
//
// reclaim gives up only when nothing can leave and nothing moves: a copy in either direction, or a block
// that another thread is about to free, may be what makes room.

StorageState::StorageState(c10::Storage storage, Bytes size_bytes, int64_t order, bool is_managed)
    : size_bytes(size_bytes),
      storage_bytes(static_cast<Bytes>(storage.nbytes())),
      order(order),
      is_managed(is_managed),
      device_copy_(std::move(storage)) {}

SwapEngine::SwapEngine(
    Device& device, std::unique_ptr<DiskStore> disk, Link::Options link, LowerTiers::HostOptions host)
    : device_(device), tiers_(device, std::move(disk), host), link_(std::make_unique<Link>(link)) {}

SwapEngine::~SwapEngine() {
  link_.reset(); // its last callbacks still use the members above
}

StorageStatePtr SwapEngine::adopt(c10::Storage storage, Bytes size_bytes, bool is_managed) {
  const std::lock_guard lock(mutex_);
  auto state = std::make_shared<StorageState>(std::move(storage), size_bytes, next_order_++, is_managed);
  if (is_managed) {
    device_.add_managed_bytes(size_bytes);
    resident_.emplace_hint(resident_.end(), state->order, state);
    device_.note_use(state->device_copy_.data());
  }
  return state;
}

bool SwapEngine::is_sole_owner(const StorageStatePtr& state) const {
  const std::lock_guard lock(mutex_);
  return state->device_copy_ && state->device_copy_.use_count() == 1;
}

bool SwapEngine::was_swapped(const StorageStatePtr& state) const {
  const std::lock_guard lock(mutex_);
  return state->was_swapped_;
}

bool SwapEngine::was_dropped(const StorageStatePtr& state) const {
  const std::lock_guard lock(mutex_);
  return state->was_dropped_;
}

Residency SwapEngine::residency(const StorageStatePtr& state) const {
  const std::lock_guard lock(mutex_);
  return state->residency_;
}

void SwapEngine::pin(const StorageStatePtr& state) {
  const std::lock_guard lock(mutex_);
  state->is_pinned_ = true;
}

bool SwapEngine::swap_out(const StorageStatePtr& state) {
  const std::lock_guard lock(mutex_);
  return start_swap_out(state, TransferClass::kEvict);
}

// Requires: mutex_ held.
bool SwapEngine::may_leave(const StorageState& state) const {
  if (!state.is_managed || state.is_pinned_ || state.is_discarded_ || state.num_waiting_ > 0 ||
      state.residency_ != Residency::kDevice || state.transfer_ || state.device_copy_.use_count() != 1) {
    return false;
  }
  // use_count() is a relaxed load: this orders what the former owners wrote before the copy.
  static_cast<void>(state.device_copy_.getWeakStorageImpl());
  return true;
}

// Requires: mutex_ held.
bool SwapEngine::start_swap_out(const StorageStatePtr& state, TransferClass cls) {
  if (!may_leave(*state) || write_error_ ||
      static_cast<Bytes>(state->device_copy_.nbytes()) !=
          state->storage_bytes) { // resized since it was saved
    return false;
  }
  std::shared_ptr<TierCopy> copy;
  try {
    copy = tiers_.allocate(state->storage_bytes);
  } catch (const DiskError&) {
    write_error_ = std::current_exception();
  }
  if (!copy) {
    return false;
  }
  const void* data = state->device_copy_.data();
  const FencePtr written = device_.fence(data); // what the program queued before it let go
  state->transfer_ = link_->submit( // may throw: nothing has changed yet
      Direction::kOut,
      cls,
      state->storage_bytes,
      [copy, data](Bytes offset, Bytes size) {
        copy->write(offset, static_cast<const char*>(data) + offset, size);
      },
      [this, state](bool complete, std::exception_ptr error) {
        finish_swap_out(state, complete, std::move(error));
      },
      waits_for(written));
  state->copy_ = std::move(copy);
  state->residency_ = Residency::kSwappingOut;
  out_in_flight_ += state->size_bytes;
  ++num_moves_;
  return true;
}

void SwapEngine::finish_swap_out(const StorageStatePtr& state, bool complete, std::exception_ptr error) {
  Lock lock(mutex_);
  if (error && !write_error_) {
    write_error_ = std::move(error);
  }
  if (complete && !state->is_discarded_) {
    free_device_copy(lock, state);
    state->residency_ = Residency::kSwappedOut;
    state->was_swapped_ = true;
    stats_.swapped_out_bytes += state->storage_bytes;
    stats_.written_to_disk_bytes += state->copy_->tier() == Tier::kDisk ? state->storage_bytes : 0;
    resident_.erase(state->order);
  } else if (!state->is_discarded_) {
    // Cancelled by acquire or failed: the device copy is the only good one.
    state->residency_ = Residency::kDevice;
    state->copy_ = nullptr;
  }
  if (state->is_discarded_) { // maybe only while the block was freed
    free_device_copy(lock, state);
    state->residency_ = Residency::kSwappedOut; // ends the waits for it
    state->copy_ = nullptr;
  }
  state->transfer_ = nullptr;
  out_in_flight_ -= state->size_bytes;
  end_move();
}

// Unless it is gone already. mutex_ is released meanwhile. Requires: `lock` holds it, and the state or its
// transfer keeps other threads from the copy.
void SwapEngine::free_device_copy(Lock& lock, const StorageStatePtr& state) {
  c10::Storage doomed = std::move(state->device_copy_);
  if (!doomed) {
    return;
  }
  ++num_moves_;
  lock.unlock();
  doomed = c10::Storage();
  if (state->is_managed) {
    device_.add_managed_bytes(-state->size_bytes);
  }
  lock.lock();
  end_move();
}

// Requires: mutex_ held.
void SwapEngine::end_move() {
  --num_moves_;
  ++num_ended_moves_;
  changed_.notify_all();
}

bool SwapEngine::try_swap_in(const StorageStatePtr& state) {
  {
    const std::lock_guard lock(mutex_);
    if (state->residency_ != Residency::kSwappedOut || state->is_discarded_) {
      return true;
    }
  }
  return start_swap_in(state, TransferClass::kPrefetch);
}

// False when there is no memory without reclaiming, which is done for kDemand only.
bool SwapEngine::start_swap_in(const StorageStatePtr& state, TransferClass cls) {
  device_.add_managed_bytes(state->size_bytes);
  auto lower_again = c10::make_scope_exit([&] { device_.add_managed_bytes(-state->size_bytes); });
  c10::DataPtr block = cls == TransferClass::kDemand ? device_.allocate(state->storage_bytes)
                                                     : device_.try_allocate(state->storage_bytes);
  if (!block) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  if (state->residency_ != Residency::kSwappedOut || state->is_discarded_) {
    return true; // another thread was faster
  }
  void* data = block.mutable_get();
  const FencePtr allocated = device_.fence(data); // work that was queued when the block was another's
  auto copy = state->copy_;
  state->transfer_ = link_->submit( // may throw: nothing has changed yet
      Direction::kIn,
      cls,
      state->storage_bytes,
      [copy, data](Bytes offset, Bytes size) {
        copy->read(offset, static_cast<char*>(data) + offset, size);
      },
      [this, state](bool complete, std::exception_ptr error) {
        finish_swap_in(state, complete, std::move(error));
      },
      waits_for(allocated));
  state->device_copy_ = c10::Storage(
      c10::Storage::use_byte_size_t(),
      static_cast<size_t>(state->storage_bytes),
      std::move(block),
      device_.allocator(),
      /*resizable=*/true);
  state->residency_ = Residency::kSwappingIn;
  arriving_.emplace(state->order, state);
  ++num_moves_;
  lower_again.release();
  return true;
}

void SwapEngine::finish_swap_in(const StorageStatePtr& state, bool complete, std::exception_ptr error) {
  Lock lock(mutex_);
  if (complete && !state->is_discarded_) {
    state->residency_ = Residency::kDevice;
    state->read_error_ = nullptr; // of an earlier prefetch
    stats_.swapped_in_bytes += state->storage_bytes;
    resident_.emplace(state->order, state);
  } else {
    free_device_copy(lock, state);
    state->residency_ = Residency::kSwappedOut;
    state->read_error_ = std::move(error);
  }
  if (state->is_discarded_) { // maybe only while the block was freed
    state->copy_ = nullptr;
  }
  state->transfer_ = nullptr;
  arriving_.erase(state->order);
  end_move();
}

c10::Storage SwapEngine::acquire(const StorageStatePtr& state, const InterruptFn& interrupt) {
  std::unique_lock lock(mutex_);
  if (state->residency_ == Residency::kSwappingOut && link_->cancel(state->transfer_)) {
    // finish_swap_out will find kDevice and drop the half-written extent.
    state->residency_ = Residency::kDevice;
  }
  while (state->residency_ != Residency::kDevice) {
    if (state->read_error_) {
      std::rethrow_exception(std::exchange(state->read_error_, nullptr));
    }
    TORCH_INTERNAL_ASSERT(state->residency_ != Residency::kDropped);
    if (state->residency_ == Residency::kSwappedOut) {
      lock.unlock();
      start_swap_in(state, TransferClass::kDemand);
      lock.lock();
      continue;
    }
    if (state->residency_ == Residency::kSwappingIn) {
      link_->promote(state->transfer_, TransferClass::kDemand);
    }
    ++state->num_waiting_; // what has arrived must not be evicted before it is taken
    const auto waited = c10::make_scope_exit([&] { --state->num_waiting_; });
    const StallTimer timer(stalls_, device_);
    while (state->residency_ == Residency::kSwappingIn || state->residency_ == Residency::kSwappingOut) {
      const bool timed_out =
          changed_.wait_for(lock, std::chrono::milliseconds(50)) == std::cv_status::timeout;
      if (timed_out && interrupt) {
        lock.unlock();
        const auto relock = c10::make_scope_exit([&] { lock.lock(); });
        interrupt();
      }
    }
  }
  // From here on the bytes may be written through what is handed out: the disk copy is stale.
  if (!state->transfer_) {
    state->copy_ = nullptr;
  }
  if (state->was_swapped_ || state->was_dropped_) {
    device_.share(state->device_copy_.data_ptr());
  }
  return state->device_copy_;
}

void SwapEngine::wait_swapped_out(const StorageStatePtr& state) {
  std::unique_lock lock(mutex_);
  if (state->residency_ != Residency::kSwappingOut) {
    return;
  }
  link_->promote(state->transfer_, TransferClass::kDemand);
  const StallTimer timer(stalls_, device_);
  changed_.wait(lock, [&] { return state->residency_ != Residency::kSwappingOut; });
}

void SwapEngine::wait_all_swapped_out() {
  std::unique_lock lock(mutex_);
  if (out_in_flight_ == 0) {
    return;
  }
  const StallTimer timer(stalls_, device_);
  changed_.wait(lock, [&] { return out_in_flight_ == 0; });
}

void SwapEngine::discard(const StorageStatePtr& state) {
  Lock lock(mutex_);
  if (state->is_discarded_) {
    return;
  }
  state->is_discarded_ = true;
  resident_.erase(state->order);
  if (state->transfer_) {
    // The copy in flight still uses block and extent; its end frees them.
    link_->cancel(state->transfer_);
    return;
  }
  state->copy_ = nullptr;
  free_device_copy(lock, state);
}

void SwapEngine::rethrow_error() {
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    error = std::exchange(write_error_, nullptr);
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

std::exception_ptr SwapEngine::error() const {
  const std::lock_guard lock(mutex_);
  return write_error_;
}

SwapEngine::Stats SwapEngine::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

} // namespace torchlms
