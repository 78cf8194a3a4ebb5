// SPDX-License-Identifier: BSD-3-Clause
// Storages that the caller makes again instead of having them copied.
#include <c10/util/Exception.h>
#include <utility>

#include "swap/swap_engine.h"

namespace torchlms {

bool SwapEngine::drop(const StorageStatePtr& state) {
  Lock lock(mutex_);
  if (!may_leave(*state)) {
    return false;
  }
  resident_.erase(state->order);
  state->residency_ = Residency::kDropped;
  state->was_dropped_ = true;
  state->copy_ = nullptr;
  free_device_copy(lock, state);
  return true;
}

void SwapEngine::restore(const StorageStatePtr& state, c10::Storage storage) {
  const std::lock_guard lock(mutex_);
  TORCH_INTERNAL_ASSERT(
      static_cast<Bytes>(storage.nbytes()) == state->storage_bytes,
      "torchlms: a replay made ",
      storage.nbytes(),
      " bytes where ",
      state->storage_bytes,
      " were dropped");
  if (state->is_discarded_) {
    return;
  }
  device_.add_managed_bytes(state->size_bytes);
  state->device_copy_ = std::move(storage);
  state->residency_ = Residency::kDevice;
  resident_.emplace(state->order, state);
  changed_.notify_all();
}

} // namespace torchlms
