// SPDX-License-Identifier: BSD-3-Clause
#include "plan/validator.h"

#include <algorithm>
#include <cstddef>

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

Broken check_keep(StorageId id, const Action& action) {
  if (action.swap_out != kNone || action.release != kNone || action.swap_in != kNone) {
    return broken(id, "is kept but has swap events");
  }
  return std::nullopt;
}

Broken check_swap(const Trace& trace, StorageId id, const Action& action) {
  const StorageRecord& storage = trace.storages[id];
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
// however slow the copies are.
bool may_be_held(const StorageRecord& storage, const Action& action, EventId event) {
  if (!storage.is_managed || storage.first_pack == kNone || event <= storage.first_pack) {
    return false;
  }
  if (storage.freed != kNone && event > storage.freed) {
    return false;
  }
  const bool is_away = action.kind == ActionKind::kSwap && event > action.release &&
      (action.swap_in == kNone || event <= action.swap_in);
  return !is_away;
}

Broken check_bytes(const Trace& trace, const Plan& plan) {
  Bytes highest = 0;
  size_t where = 0;
  for (size_t i = 0; i < trace.events.size(); ++i) {
    Bytes held = trace.events[i].base_peak_bytes + plan.base_delta_bytes;
    for (size_t s = 0; s < trace.storages.size(); ++s) {
      if (may_be_held(trace.storages[s], plan.actions[s], static_cast<EventId>(i))) {
        held += trace.storages[s].size_bytes;
      }
    }
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
  for (size_t i = 0; i < plan.actions.size(); ++i) {
    const Action& action = plan.actions[i];
    const auto id = static_cast<StorageId>(i);
    const Broken found =
        action.kind == ActionKind::kKeep ? check_keep(id, action) : check_swap(trace, id, action);
    if (found) {
      return found;
    }
  }
  if (const Broken found = check_order(trace, plan)) {
    return found;
  }
  return check_bytes(trace, plan);
}

} // namespace torchlms
