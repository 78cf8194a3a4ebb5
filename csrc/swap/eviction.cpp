// SPDX-License-Identifier: BSD-3-Clause
// How the swap engine makes room when memory is short.
#include "swap/swap_engine.h"

namespace torchlms {

bool SwapEngine::reclaim(Bytes needed) {
  Lock lock(mutex_);
  for (auto it = resident_.begin(); it != resident_.end() && out_in_flight_ < needed;) {
    const StorageStatePtr state = (it++)->second;
    if (may_leave(*state) && state->copy_) {
      // Prefetched and not used yet: it can go for nothing.
      resident_.erase(state->order);
      state->residency_ = Residency::kSwappedOut;
      free_device_copy(lock, state);
      return true;
    }
    if (start_swap_out(state, TransferClass::kDemand)) {
      ++stats_.num_evictions;
    }
  }
  for (const auto& [order, state] : resident_) {
    if (state->residency_ == Residency::kSwappingOut) {
      link_->promote(state->transfer_, TransferClass::kDemand);
    }
  }
  cancel_prefetches(needed - out_in_flight_);
  if (num_moves_ == 0) {
    return false;
  }
  const StallTimer timer(stalls_, device_);
  const uint64_t num_before = num_ended_moves_;
  changed_.wait(lock, [&] { return num_ended_moves_ != num_before; });
  return true;
}

// Those of storages that are needed last. Requires: mutex_ held.
void SwapEngine::cancel_prefetches(Bytes enough) {
  Bytes cancelled = 0;
  for (auto it = arriving_.begin(); it != arriving_.end() && cancelled < enough; ++it) {
    const StorageState& state = *it->second;
    if (state.num_waiting_ == 0) {
      link_->cancel(state.transfer_); // or it ends soon, and can go for nothing then
      cancelled += state.size_bytes;
    }
  }
}

void SwapEngine::relieve(Bytes target) {
  const std::lock_guard lock(mutex_);
  for (auto it = resident_.begin();
       it != resident_.end() && device_.held_bytes() - out_in_flight_ > target && !write_error_;
       ++it) {
    start_swap_out(it->second, TransferClass::kEvict);
  }
}

} // namespace torchlms
