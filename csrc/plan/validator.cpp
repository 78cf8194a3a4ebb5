// SPDX-License-Identifier: BSD-3-Clause
#include "plan/validator.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "plan/replay_check.h"

namespace torchlms {

namespace {

using Broken = std::optional<std::string>;

Broken broken(StorageId id, const std::string& what) {
  return "storage " + std::to_string(id) + ": " + what;
}

bool can_issue_at(const Trace& trace, EventId event, EventId first_unpack) {
  return event == trace.forward_end - 1 || event == first_unpack - 1 ||
      trace.events[event].kind == EventKind::kUnpack;
}

Broken check_unswapped(StorageId id, const Action& action) {
  if (action.swap_out != kNone || action.release != kNone || action.swap_in != kNone) {
    return broken(
        id,
        action.kind == ActionKind::kKeep ? "is kept but has swap events"
                                         : "is recomputed but has swap events");
  }
  return std::nullopt;
}

// What the plan makes of the trace: replays need their leaves, which are then swapped in earlier and live
// longer.
struct Planned {
  std::vector<StorageRecord> storages; // with first_unpack and freed as they will be
  std::map<StorageId, ReplayCheck> replays; // of what is recomputed
  Broken fault;

  Planned(const Trace& trace, const Plan& plan) : storages(trace.storages) {
    const ReplayChecker checker(trace);
    for (size_t i = 0; i < plan.actions.size(); ++i) {
      const auto id = static_cast<StorageId>(i);
      if (plan.actions[i].kind != ActionKind::kRecompute) {
        continue;
      }
      replays[id] = checker.check(id);
      if (!replays[id].fault.empty()) {
        fault = broken(id, "is recomputed, but " + replays[id].fault);
        return;
      }
    }
    bool has_changed = true;
    while (has_changed) {
      has_changed = false;
      for (const auto& [id, replay] : replays) {
        for (const StorageId leaf : replay.leaves) {
          has_changed |= needs(storages[leaf], storages[id].first_unpack);
        }
      }
    }
  }

 private:
  static bool needs(StorageRecord& leaf, EventId event) {
    const bool is_earlier = leaf.first_unpack == kNone || event < leaf.first_unpack;
    const bool is_later = leaf.freed != kNone && !leaf.outlives_step && event > leaf.freed;
    leaf.first_unpack = is_earlier ? event : leaf.first_unpack;
    leaf.freed = is_later ? event : leaf.freed;
    return is_earlier || is_later;
  }
};

Broken check_swap(const Trace& trace, const StorageRecord& storage, StorageId id, const Action& action) {
  const auto num_events = static_cast<EventId>(trace.events.size());
  if (!storage.is_managed || storage.is_root) {
    return broken(id, "is swapped but not managed");
  }
  if (storage.dead == kNone || action.swap_out != storage.dead) {
    return broken(id, "its swap-out is not where the program drops it");
  }
  if (action.release < action.swap_out || action.release >= num_events) {
    return broken(id, "is released before its swap-out starts, or after the step");
  }
  if (storage.first_unpack == kNone) {
    if (action.swap_in != kNone) {
      return broken(id, "is brought back for no unpack");
    }
    if (storage.freed != kNone && action.release >= storage.freed) {
      return broken(id, "is released after it was freed");
    }
    return std::nullopt;
  }
  if (action.swap_in < action.release) {
    return broken(id, "is brought back before its block was released");
  }
  if (action.swap_in >= storage.first_unpack) {
    return broken(id, "is brought back after its first unpack");
  }
  if (action.swap_in < trace.forward_end - 1) {
    return broken(id, "is brought back inside the forward pass");
  }
  if (!can_issue_at(trace, action.swap_in, storage.first_unpack)) {
    return broken(id, "is prefetched at an event where nothing can be issued");
  }
  return std::nullopt;
}

Broken check_order(const Trace& trace, const Plan& plan) {
  std::vector<int> times_listed(trace.storages.size(), 0);
  EventId previous = kNone;
  for (const StorageId id : plan.swap_in_order) {
    if (id < 0 || static_cast<size_t>(id) >= trace.storages.size()) {
      return "the swap-in order names a storage that does not exist";
    }
    ++times_listed[id];
    if (plan.actions[id].swap_in < previous) {
      return broken(id, "is out of order among the swap-ins");
    }
    previous = plan.actions[id].swap_in;
  }
  for (size_t i = 0; i < plan.actions.size(); ++i) {
    if (times_listed[i] != (plan.actions[i].swap_in == kNone ? 0 : 1)) {
      return broken(static_cast<StorageId>(i), "is not listed exactly once among the swap-ins");
    }
  }
  return std::nullopt;
}

// Whether the block may be held at some moment between the events before `event` and `event` itself,
// however slow the copies are, and if it is not in the base of the trace.
bool may_be_held(
    const StorageRecord& recorded, const StorageRecord& storage, const Action& action, EventId event) {
  if (!storage.is_managed) {
    return recorded.freed != kNone && event > recorded.freed && event <= storage.freed;
  }
  if (storage.first_pack == kNone || event <= storage.first_pack) {
    return false;
  }
  if (storage.freed != kNone && event > storage.freed) {
    return false;
  }
  if (action.kind == ActionKind::kRecompute) {
    return event <= storage.dead || event > storage.first_unpack;
  }
  const bool is_away = action.kind == ActionKind::kSwap && event > action.release &&
      (action.swap_in == kNone || event <= action.swap_in);
  return !is_away;
}

Bytes held_before(const Trace& trace, const Plan& plan, const Planned& planned, EventId event) {
  Bytes held = 0;
  for (size_t s = 0; s < trace.storages.size(); ++s) {
    const bool is_held = may_be_held(trace.storages[s], planned.storages[s], plan.actions[s], event);
    held += is_held ? trace.storages[s].size_bytes : 0;
  }
  return held;
}

// The highest bytes during the replays inside `event`, or none.
Bytes held_in_replays(const Trace& trace, const Plan& plan, const Planned& planned, EventId event) {
  std::map<std::pair<OpId, StorageId>, const ReplayCheck*> in_order; // by their last ops
  Bytes rebuilt = 0;
  for (const auto& [id, replay] : planned.replays) {
    if (planned.storages[id].first_unpack == event) {
      in_order[{*replay.ops.rbegin(), id}] = &replay;
      rebuilt += trace.storages[id].size_bytes;
    }
  }
  if (in_order.empty()) {
    return 0;
  }
  Bytes held = trace.events[event].base_bytes + plan.base_delta_bytes - rebuilt +
      held_before(trace, plan, planned, event + 1);
  for (size_t s = 0; s < trace.storages.size(); ++s) { // what is let go after them
    const bool is_last_need = planned.storages[s].freed == event && trace.storages[s].freed != event;
    held += is_last_need ? trace.storages[s].size_bytes : 0;
  }
  Bytes highest = 0;
  for (const auto& [key, replay] : in_order) {
    highest = std::max(highest, held + replay->extra_bytes);
    held += trace.storages[key.second].size_bytes;
  }
  return highest;
}

Broken check_bytes(const Trace& trace, const Plan& plan, const Planned& planned) {
  Bytes highest = 0;
  size_t where = 0;
  for (size_t i = 0; i < trace.events.size(); ++i) {
    const auto event = static_cast<EventId>(i);
    const Bytes held = std::max(
        trace.events[i].base_peak_bytes + plan.base_delta_bytes + held_before(trace, plan, planned, event),
        held_in_replays(trace, plan, planned, event));
    if (i == 0 || held > highest) {
      highest = held;
      where = i;
    }
  }
  if (plan.fits != (highest <= plan.budget_bytes)) {
    return "up to " + std::to_string(highest) + " bytes are held before event " + std::to_string(where) +
        ", the budget is " + std::to_string(plan.budget_bytes) + ", and the plan says that it " +
        (plan.fits ? "fits" : "does not fit");
  }
  if (plan.predicted_peak_bytes > highest) {
    return "the predicted peak of " + std::to_string(plan.predicted_peak_bytes) +
        " bytes is more than the plan can hold, " + std::to_string(highest);
  }
  return std::nullopt;
}

} // namespace

std::optional<std::string> validate(const Trace& trace, const Plan& plan) {
  if (plan.actions.size() != trace.storages.size()) {
    return "the plan has " + std::to_string(plan.actions.size()) + " actions for " +
        std::to_string(trace.storages.size()) + " storages";
  }
  if (plan.signature != trace.signature()) {
    return "the plan is for another program";
  }
  const Planned planned(trace, plan);
  if (planned.fault) {
    return planned.fault;
  }
  for (size_t i = 0; i < plan.actions.size(); ++i) {
    const Action& action = plan.actions[i];
    const auto id = static_cast<StorageId>(i);
    const Broken found = action.kind == ActionKind::kSwap ? check_swap(trace, planned.storages[i], id, action)
                                                          : check_unswapped(id, action);
    if (found) {
      return found;
    }
  }
  if (const Broken found = check_order(trace, plan)) {
    return found;
  }
  return check_bytes(trace, plan, planned);
}

} // namespace torchlms
