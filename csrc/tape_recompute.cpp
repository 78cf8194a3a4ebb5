// SPDX-License-Identifier: BSD-3-Clause
// How a tape drops what its plan recomputes, and makes it again when backward asks.
#include <algorithm>
#include <future>

#include <ATen/Parallel.h>

#include "recompute/each_tensor.h"
#include "recompute/op_record.h"
#include "session.h"
#include "tape.h"

namespace torchlms {

// Note [Needs]
//
// A dropped storage can be made again as long as what its region reads (its leaves) can be had. So from the
// drop on it has a share in each leaf: Slot::num_needs counts those shares, and a leaf whose last handle
// died lives on until it is needed no more. A leaf may itself be dropped or swapped out; one that autograd
// did not save (a parameter, a small constant) is held by Slot::held. The shares end when the storage has
// been made again, or when nobody wants it any more, whatever backward did meanwhile.

namespace {

using Clock = std::chrono::steady_clock;

// Once an op has read it for the last time, a temporary goes.
void drop_temporaries(const Rebuild& rebuild, size_t op, Storages& storages) {
  for (const StorageId id : rebuild.region->temporaries) {
    const auto is_read_later = std::any_of(
        rebuild.records.begin() + static_cast<ptrdiff_t>(op) + 1,
        rebuild.records.end(),
        [id](const OpRecordPtr& record) { return record->reads(id); });
    const bool is_made_later = op + 1 < rebuild.records.size() && rebuild.last_made(id) > op;
    if (!is_read_later && !is_made_later) {
      storages.erase(id);
    }
  }
}

} // namespace

size_t Rebuild::last_made(StorageId id) const {
  size_t last = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    last = records[i]->makes(id) ? i : last;
  }
  return last;
}

void Tape::capture(OpFrame& frame, c10::ArrayRef<const c10::IValue> inputs) {
  for (const c10::IValue& input : inputs) {
    for_each_tensor(input, [&](int, const at::Tensor& tensor) {
      const StorageId id = id_of(tensor);
      if (program_->holds(id) && !slots_[id].held) {
        slots_[id].held = tensor.storage();
      }
    });
  }
  frame.record = std::make_shared<OpRecord>(
      *frame.op->traits, inputs, [this](const at::Tensor& tensor) { return id_of(tensor); });
}

std::shared_ptr<Rebuild> Tape::rebuild_of(StorageId id) {
  auto rebuild = std::make_shared<Rebuild>();
  rebuild->region = program_->region(id);
  rebuild->program = program_;
  for (const OpId op : rebuild->region->ops) {
    const auto record = records_.find(op);
    if (record == records_.end()) {
      return nullptr;
    }
    rebuild->records.push_back(record->second);
  }
  const auto is_there = [this](StorageId leaf) {
    return leaf < static_cast<StorageId>(slots_.size()) && !slots_[leaf].is_opaque &&
        (slots_[leaf].state || slots_[leaf].held);
  };
  const auto& leaves = rebuild->region->leaves;
  const auto& temporaries = rebuild->region->temporaries;
  const auto is_as_left = [&](StorageId made) {
    return !slots_[made].is_opaque && rebuild->records[rebuild->last_made(made)]->left_unchanged(made);
  };
  const bool is_possible = std::all_of(leaves.begin(), leaves.end(), is_there) && is_as_left(id) &&
      std::all_of(temporaries.begin(), temporaries.end(), is_as_left);
  return is_possible ? rebuild : nullptr;
}

void Tape::drop(StorageId id) {
  Slot& slot = slots_[id];
  auto rebuild = rebuild_of(id);
  if (!rebuild) {
    ++not_planned_["cannot be recomputed in this step"];
    return;
  }
  if (!engine_.drop(slot.state)) {
    return;
  }
  for (const StorageId leaf : rebuild->region->leaves) {
    ++slots_[leaf].num_needs;
  }
  slot.rebuild = std::move(rebuild);
}

// Leaves first. Requires: mutex_ held.
std::vector<StorageId> Tape::dropped_closure(StorageId id) const {
  std::vector<StorageId> order;
  std::vector<std::pair<StorageId, bool>> stack{{id, false}}; // true: its leaves are done
  const auto is_listed = [&order](StorageId one) {
    return std::find(order.begin(), order.end(), one) != order.end();
  };
  while (!stack.empty()) {
    const auto [current, has_leaves] = stack.back();
    stack.pop_back();
    const Slot& slot = slots_[current];
    if (!slot.rebuild || is_listed(current)) {
      continue;
    }
    if (has_leaves) {
      order.push_back(current);
      continue;
    }
    stack.emplace_back(current, true);
    const auto& leaves = slot.rebuild->region->leaves;
    for (auto leaf = leaves.rbegin(); leaf != leaves.rend(); ++leaf) {
      stack.emplace_back(*leaf, false);
    }
  }
  return order;
}

void Tape::rebuild(StorageId id, const SwapEngine::InterruptFn& interrupt) {
  const std::lock_guard replaying(replay_mutex_);
  std::vector<StorageId> order;
  {
    const std::lock_guard lock(mutex_);
    order = dropped_closure(id);
  }
  for (const StorageId one : order) {
    rebuild_one(one, interrupt);
  }
}

// Requires: replay_mutex_ held, and none of its leaves is dropped.
void Tape::rebuild_one(StorageId id, const SwapEngine::InterruptFn& interrupt) {
  std::shared_ptr<Rebuild> rebuild;
  StorageStatePtr state;
  std::vector<std::pair<StorageId, StorageStatePtr>> leaves;
  Storages storages;
  {
    const std::lock_guard lock(mutex_);
    rebuild = slots_[id].rebuild;
    state = slots_[id].state;
    if (!rebuild || !state) {
      return;
    }
    for (const StorageId leaf : rebuild->region->leaves) {
      if (slots_[leaf].state) {
        leaves.emplace_back(leaf, slots_[leaf].state);
      } else {
        storages[leaf] = slots_[leaf].held;
      }
    }
  }
  for (const auto& [leaf, leaf_state] : leaves) {
    storages[leaf] = engine_.acquire(leaf_state, interrupt);
  }
  const auto start = Clock::now();
  const double stall_before_us = engine_.stall_us();
  note_device_time(&DeviceTimes::replay_starts);
  replay(*rebuild, storages);
  note_device_time(&DeviceTimes::replay_ended);
  engine_.restore(state, std::move(storages.at(id)));
  storages.clear(); // before the needs end: what nobody needs then can go at once
  const std::chrono::duration<double, std::micro> elapsed = Clock::now() - start;
  const std::chrono::duration<double, std::micro> since_entry = start - start_;
  Doomed doomed;
  {
    const std::lock_guard lock(mutex_);
    recompute_us_ += std::max(0.0, elapsed.count() - (engine_.stall_us() - stall_before_us));
    // Temporaries belong to the replay, not to the program's own bytes.
    replay_peak_ = std::max(replay_peak_, device_.take_peaks().held);
    session_->note_peak(replay_peak_);
    replays_.push_back({since_entry.count(), since_entry.count() + elapsed.count(), slots_[id].size_bytes});
    slots_[id].rebuild = nullptr;
    for (const StorageId leaf : rebuild->region->leaves) {
      release_need(leaf, doomed);
    }
  }
  discard(doomed);
}

void Tape::replay(const Rebuild& rebuild, Storages& storages) const {
  for (const StorageId leaf : rebuild.region->leaves) {
    for (const OpRecordPtr& record : rebuild.records) {
      record->check_unchanged(leaf, storages.at(leaf));
    }
  }
  const auto run = [&] {
    for (size_t i = 0; i < rebuild.records.size(); ++i) {
      rebuild.records[i]->replay(storages);
      drop_temporaries(rebuild, i, storages);
    }
  };
  const bool wants_own_thread = device_.type() == c10::kCPU &&
      std::any_of(rebuild.records.begin(), rebuild.records.end(), [](const OpRecordPtr& record) {
                                  return record->wants_other_thread_count();
                                });
  if (!wants_own_thread) {
    run();
    return;
  }
  // See Note [Thread counts].
  std::async(std::launch::async, [&run] {
    static_cast<void>(at::get_num_threads()); // else the first kernel would change it
    run();
  }).get();
}

// Requires: mutex_ held. One share in it ended.
void Tape::release_need(StorageId id, Doomed& doomed) {
  Slot& slot = slots_[id];
  --slot.num_needs;
  release_if_unwanted(id, doomed);
}

// Requires: mutex_ held.
void Tape::release_if_unwanted(StorageId id, Doomed& doomed) {
  std::vector<StorageId> unwanted{id};
  while (!unwanted.empty()) {
    Slot& slot = slots_[unwanted.back()];
    unwanted.pop_back();
    if (slot.num_handles > 0 || slot.num_needs > 0) {
      continue;
    }
    if (slot.state) {
      slot.was_swapped = slot.was_swapped || engine_.was_swapped(slot.state);
      slot.was_dropped = slot.was_dropped || engine_.was_dropped(slot.state);
      doomed.states.push_back(std::exchange(slot.state, nullptr));
    }
    if (slot.held) {
      doomed.storages.push_back(std::exchange(slot.held, c10::Storage()));
    }
    if (const auto rebuild = std::exchange(slot.rebuild, nullptr)) {
      for (const StorageId leaf : rebuild->region->leaves) {
        --slots_[leaf].num_needs;
        unwanted.push_back(leaf);
      }
    }
  }
}

// Requires: mutex_ not held.
void Tape::discard(const Doomed& doomed) {
  for (const StorageStatePtr& state : doomed.states) {
    engine_.discard(state);
  }
}

// What was held for regions whose storages were kept after all. Requires: mutex_ held.
void Tape::release_idle(Doomed& doomed) {
  records_.clear();
  for (Slot& slot : slots_) {
    if (slot.held && slot.num_needs == 0) {
      doomed.storages.push_back(std::exchange(slot.held, c10::Storage()));
    }
  }
}

void Tape::note_unseen_write(const OperatorTraits& traits, c10::ArrayRef<const c10::IValue> inputs) {
  std::vector<StorageId> endangered;
  {
    const std::lock_guard lock(mutex_);
    if (mode_ == Mode::kWatching || forward_ended_ || recorder_.is_backward()) {
      return;
    }
    const uint64_t written = written_args(traits, inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (i < 64 && (written >> i & 1) == 0) {
        continue;
      }
      for_each_tensor(inputs[i], [&](int, const at::Tensor& tensor) {
        if (is_plain(tensor)) {
          const StorageId id = id_of(tensor);
          slots_[id].is_opaque = true;
          recorder_.set_opaque(id);
          add_readers(id, endangered);
        }
      });
    }
  }
  rebuild_before_write(endangered);
}

// The dropped storages whose replays read it. Requires: mutex_ held.
void Tape::add_readers(StorageId leaf, std::vector<StorageId>& readers) const {
  if (slots_[leaf].num_needs == 0) {
    return;
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    const auto& rebuild = slots_[i].rebuild;
    if (rebuild && std::binary_search(rebuild->region->leaves.begin(), rebuild->region->leaves.end(), leaf)) {
      readers.push_back(static_cast<StorageId>(i));
    }
  }
}

// A step that differs from the planned one writes what replays would read. Requires: mutex_ not held.
void Tape::rebuild_before_write(const std::vector<StorageId>& readers) {
  for (const StorageId id : readers) {
    try {
      rebuild(id, {});
    } catch (const std::exception&) {
      // No memory for it now: backward refuses to replay what was changed.
    }
  }
}

} // namespace torchlms
