// SPDX-License-Identifier: BSD-3-Clause
// The second half of a tape's life: unpacks, prefetches, frees, and what the session learns.
#include <algorithm>

#include "session.h"
#include "tape.h"

namespace torchlms {

c10::Storage Tape::unpack(
    StorageId id, const StorageStatePtr& state, const SwapEngine::InterruptFn& interrupt) {
  States to_wait;
  Doomed idle;
  bool is_late = false;
  {
    const std::lock_guard lock(mutex_);
    poll_deaths(to_wait);
    if (num_unpacks_ == 0) {
      release_idle(idle);
    }
    to_wait.clear(); // backward does not wait for blocks that only now became free to go
    begin_backward();
    add_event(EventKind::kUnpack, id);
    if (mode_ == Mode::kReactive && !is_finished_) {
      recorder_.set_backward_node(Session::current_operation());
    }
    if (mode_ == Mode::kFollowing) {
      if (program_->unpacked(num_unpacks_) == id) {
        collect(program_->releases_at_unpack(num_unpacks_), to_wait);
      } else {
        leave_program("backward");
      }
    }
    ++num_unpacks_;
    const Residency residency = engine_.residency(state);
    is_late = residency == Residency::kSwappedOut || residency == Residency::kSwappingIn;
    if (residency == Residency::kSwappedOut) {
      engine_.try_swap_in(state); // before the prefetches take the memory
    }
  }
  for (const StorageStatePtr& releasing : to_wait) {
    engine_.wait_swapped_out(releasing); // the memory that the prefetches and the node take
  }
  {
    const std::lock_guard lock(mutex_);
    if (mode_ == Mode::kFollowing) {
      prefetch_planned();
    } else if (mode_ == Mode::kReactive) {
      prefetch_window_ = is_late ? std::min(prefetch_window_ * 2, session_->budget_bytes() / 4)
                                 : std::max(prefetch_window_ - prefetch_window_ / 16, largest_bytes_);
      prefetch_reactive(id);
    }
  }
  if (engine_.residency(state) == Residency::kDropped) {
    rebuild(id, interrupt);
  }
  c10::Storage storage = engine_.acquire(state, interrupt);
  {
    // A swap-in made a new StorageImpl: packs during this backward must find the same storage.
    const std::lock_guard lock(mutex_);
    const auto* impl = storage.unsafeGetStorageImpl();
    if (ids_.emplace(impl, id).second) {
      // The old StorageImpl's address may be reused once nothing refers to it.
      ids_.erase(slots_[id].storage._unsafe_get_target());
      slots_[id].storage = storage.getWeakStorageImpl();
    }
    const auto& checksum = slots_[id].checksum;
    TORCH_CHECK(
        !checksum || *checksum == this->checksum(storage),
        "torchlms verify: a saved tensor's storage of ",
        storage.nbytes(),
        " bytes came back with other bytes than it was saved with; something wrote into it that PyTorch does not see "
        "(tensor.data, NumPy, a foreign kernel)");
  }
  return storage;
}

bool Tape::is_ready(StorageId id) const {
  const std::lock_guard lock(mutex_);
  const Slot& slot = slots_[id];
  return slot.state && engine_.residency(slot.state) == Residency::kDevice;
}

bool Tape::has_other_readers(StorageId id, const c10::Storage& storage) const {
  const std::lock_guard lock(mutex_);
  // Two references are ours: the state's and the caller's.
  return slots_[id].num_handles > 1 || slots_[id].num_needs > 0 || storage.use_count() > 2;
}

void Tape::prefetch_planned() {
  for (const auto& [count, id] : program_->swap_ins_after(num_unpacks_)) {
    pending_swap_ins_.push_back(id);
  }
  while (!pending_swap_ins_.empty() && swap_in_now(pending_swap_ins_.front())) {
    pending_swap_ins_.pop_front();
  }
}

void Tape::prefetch_reactive(StorageId current) {
  if (session_->holds_minimum()) {
    return;
  }
  while (prefetch_cursor_ > 0 &&
         (!slots_[packed_order_[prefetch_cursor_ - 1]].state ||
          packed_order_[prefetch_cursor_ - 1] == current)) {
    --prefetch_cursor_;
  }
  constexpr size_t kMostAhead = 64;
  Bytes window = prefetch_window_;
  for (size_t ahead = 0; ahead < kMostAhead && ahead < prefetch_cursor_ && window > 0; ++ahead) {
    const StorageId id = packed_order_[prefetch_cursor_ - 1 - ahead];
    window -= slots_[id].size_bytes;
    // What the running node will allocate is unknown: leave it as much as the two largest blocks.
    const Bytes free_bytes = session_->budget_bytes() - device_.held_bytes() - 2 * largest_bytes_;
    if (free_bytes < slots_[id].size_bytes || !swap_in_now(id)) {
      return;
    }
  }
}

bool Tape::swap_in_now(StorageId id) {
  if (id >= static_cast<StorageId>(slots_.size()) || !slots_[id].state) {
    return true;
  }
  return engine_.try_swap_in(slots_[id].state);
}

void Tape::handle_died(StorageId id) {
  bool ended = false;
  Doomed doomed;
  {
    const std::lock_guard lock(mutex_);
    Slot& slot = slots_[id];
    --num_handles_;
    if (--slot.num_handles == 0) {
      add_event(EventKind::kFree, id);
      slot.was_freed = true;
      release_if_unwanted(id, doomed);
    }
    ended = is_over();
  }
  discard(doomed);
  if (ended) {
    finish_step();
  }
}

bool Tape::awaits_backward() const {
  const std::lock_guard lock(mutex_);
  return forward_ended_ && num_unpacks_ == num_forward_unpacks_ && num_handles_ > 0;
}

bool Tape::is_over() const {
  return num_handles_ == 0 && forward_ended_;
}

void Tape::finish_step() {
  Outcome outcome;
  bool was_used = false;
  {
    const std::lock_guard lock(mutex_);
    // A gradient taken within the forward pass is not the backward pass that ends the step.
    was_used = num_unpacks_ > num_forward_unpacks_ || (num_unpacks_ > 0 && num_handles_ == 0) ||
        mode_ == Mode::kWatching;
    if (is_finished_ || !forward_ended_ || !was_used) {
      return;
    }
    is_finished_ = true;
    outcome = take_outcome();
  }
  session_->step_finished(std::move(outcome));
}

Tape::Outcome Tape::take_outcome() {
  Outcome outcome;
  if (device_times_ && mode_ != Mode::kWatching) {
    outcome.device_times = std::move(device_times_);
  }
  for (Slot& slot : slots_) {
    slot.was_swapped = slot.was_swapped || (slot.state && engine_.was_swapped(slot.state));
    slot.was_dropped = slot.was_dropped || (slot.state && engine_.was_dropped(slot.state));
    if (slot.packed_bytes == 0) {
      continue;
    }
    (slot.was_dropped       ? outcome.recomputed_bytes
         : slot.was_swapped ? outcome.swapped_bytes
                            : outcome.kept_bytes) += slot.size_bytes;
    outcome.deduplicated_bytes += std::max<Bytes>(0, slot.packed_bytes - slot.size_bytes);
  }
  const bool followed = mode_ == Mode::kFollowing || mode_ == Mode::kWatching;
  outcome.followed = followed ? program_ : nullptr;
  outcome.is_complete = !is_partial_;
  outcome.was_watched = mode_ == Mode::kWatching;
  record_ends();
  outcome.trace = recorder_.finish();
  outcome.geometry = std::move(geometry_);
  outcome.step_us = last_event_us_;
  outcome.forward_us = forward_us_;
  outcome.stall_us = engine_.stall_us() - start_stall_us_;
  outcome.recompute_us = recompute_us_;
  outcome.not_planned = std::move(not_planned_);
  outcome.replays = std::move(replays_);
  outcome.memory = std::move(memory_);
  outcome.link_start_us = start_link_us_;
  return outcome;
}

} // namespace torchlms
