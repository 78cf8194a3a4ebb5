// SPDX-License-Identifier: BSD-3-Clause
#include "plan/swap_schedule.h"

#include <algorithm>

#include "plan/event_lists.h"

namespace torchlms {

namespace {

std::vector<EventId> gap_lasts_of(
    const std::vector<Candidate>& candidates, const std::vector<EventId>& swap_ins) {
  std::vector<EventId> gap_lasts(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    gap_lasts[i] = candidates[i].first_unpack == kNone ? candidates[i].gap_last : swap_ins[i];
  }
  return gap_lasts;
}

} // namespace

SwapSchedule::SwapSchedule(const Trace& trace)
    : trace_(trace), candidates_(swap_candidates(trace)), held_when_kept_(torchlms::held_when_kept(trace)) {
  const auto num_events = static_cast<EventId>(trace.events.size());
  for (EventId id = std::max(trace.forward_end - 1, 0); id < num_events; ++id) {
    if (id == trace.forward_end - 1 || trace.events[id].kind == EventKind::kUnpack) {
      issues_.push_back(id);
    }
  }
  // Backward is seen at its unpacks only, the forward pass at each op.
  for (EventId id = 0; id < num_events; ++id) {
    const bool waits =
        id < trace.forward_end || waits_.empty() || trace.events[id].kind == EventKind::kUnpack;
    waits_.push_back(waits ? id : waits_.back());
  }
  const auto first_issue_from = [this](EventId id) {
    return static_cast<int32_t>(std::lower_bound(issues_.begin(), issues_.end(), id) - issues_.begin());
  };
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const Candidate& candidate = candidates_[i];
    if (candidate.first_unpack != kNone) {
      returns_.push_back(
          {static_cast<int32_t>(i),
           first_issue_from(candidate.first_unpack),
           first_issue_from(candidate.dead)});
    }
  }
  std::sort(returns_.begin(), returns_.end(), [](const Return& a, const Return& b) { return a.own < b.own; });
}

std::vector<Bytes> SwapSchedule::held(
    const Selection& selected, const std::vector<EventId>& gap_lasts) const {
  std::vector<Bytes> change(held_when_kept_.size() + 1, 0);
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (selected[i]) {
      change[candidates_[i].dead + 1] -= candidates_[i].size_bytes;
      change[gap_lasts[i] + 1] += candidates_[i].size_bytes;
    }
  }
  std::vector<Bytes> held(held_when_kept_.size());
  Bytes away = 0;
  for (size_t i = 0; i < held.size(); ++i) {
    away += change[i];
    held[i] = held_when_kept_[i] + away;
  }
  return held;
}

std::vector<Bytes> SwapSchedule::held_on_demand(const Selection& selected) const {
  std::vector<EventId> gap_lasts(candidates_.size());
  std::transform(candidates_.begin(), candidates_.end(), gap_lasts.begin(), [](const Candidate& candidate) {
    return candidate.gap_last;
  });
  return held(selected, gap_lasts);
}

std::vector<EventId> SwapSchedule::swap_ins(
    const Selection& selected, Bytes budget_bytes, const PrefetchRule& rule) const {
  std::vector<Bytes> held = held_on_demand(selected);
  const auto highest = [&held](EventId first, EventId end) {
    return first < end ? *std::max_element(held.begin() + first, held.begin() + end) : INT64_MIN;
  };
  std::vector<Bytes> held_after(issues_.size()); // highest from an issue to the next
  for (size_t k = 0; k + 1 < issues_.size(); ++k) {
    held_after[k] = highest(issues_[k] + 1, issues_[k + 1] + 1);
  }
  std::vector<EventId> result(candidates_.size(), kNone);
  int32_t previous = 0;
  // Earliest use first: giving it the memory first never delays a later one, which may not be issued
  // before it, except by `may_overtake`.
  for (const Return& r : returns_) {
    if (!selected[r.candidate]) {
      continue;
    }
    const Candidate& candidate = candidates_[r.candidate];
    const Bytes limit = budget_bytes - candidate.size_bytes;
    const int32_t earliest =
        std::max({r.own - rule.num_unpacks, r.first_issue, rule.may_overtake ? 0 : previous});
    // Only those with the same use have taken memory here yet: uses before it came earlier, uses after it
    // come later.
    const Bytes held_before_own = r.own > 0 ? highest(issues_[r.own - 1] + 1, candidate.first_unpack) : 0;
    if (r.own <= earliest || held_before_own > limit) {
      result[r.candidate] = candidate.gap_last;
      previous = r.own;
      continue;
    }
    int32_t issue = r.own - 1;
    held_after[issue] = std::max(held_after[issue], held_before_own + candidate.size_bytes);
    for (EventId id = issues_[issue] + 1; id < candidate.first_unpack; ++id) {
      held[id] += candidate.size_bytes;
    }
    for (; issue > earliest && held_after[issue - 1] <= limit; --issue) {
      held_after[issue - 1] += candidate.size_bytes;
    }
    result[r.candidate] = issues_[issue];
    previous = issue;
  }
  return result;
}

// The link copies first in, first out, so waiting for one copy waits for all before it: releasing from
// the head of the queue, and only when memory runs out, makes every wait as late as it can be.
std::vector<EventId> SwapSchedule::releases(
    const Selection& selected, const std::vector<EventId>& gap_lasts, Bytes budget_bytes) const {
  const std::vector<Bytes> held = this->held(selected, gap_lasts);
  std::vector<EventId> result(candidates_.size(), kNone);
  EventLists gap_ends(trace_.events.size(), candidates_.size());
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (selected[i] && gap_lasts[i] > candidates_[i].dead) {
      gap_ends.push_front(gap_lasts[i], static_cast<int32_t>(i));
    }
  }
  Bytes pending = 0; // swap-outs queued and not released, still to come back
  size_t head = 0;
  size_t tail = 0;
  const auto num_events = static_cast<EventId>(held.size());
  for (EventId id = 1; id < num_events; ++id) {
    for (int32_t i = gap_ends.first(id - 1); i != kNone; i = gap_ends.next(i)) {
      pending -= result[i] == kNone ? candidates_[i].size_bytes : 0;
    }
    for (; tail < candidates_.size() && candidates_[tail].dead < id; ++tail) {
      pending += selected[tail] && gap_lasts[tail] >= id ? candidates_[tail].size_bytes : 0;
    }
    for (; head < tail && held[id] + pending > budget_bytes; ++head) {
      if (selected[head] && gap_lasts[head] >= id) {
        result[head] = std::max(waits_[id - 1], candidates_[head].dead);
        pending -= candidates_[head].size_bytes;
      }
    }
  }
  return result;
}

Plan SwapSchedule::plan(
    const Selection& selected,
    const std::vector<EventId>& swap_ins,
    Bytes budget_bytes,
    const Selection& forced) const {
  const std::vector<EventId> gap_lasts = gap_lasts_of(candidates_, swap_ins);
  const std::vector<EventId> releases = this->releases(selected, gap_lasts, budget_bytes);
  Plan plan;
  plan.actions.resize(trace_.storages.size());
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (!selected[i] || (releases[i] == kNone && (forced.empty() || !forced[i]))) {
      continue;
    }
    const Candidate& candidate = candidates_[i];
    Action& action = plan.actions[candidate.storage];
    action.kind = ActionKind::kSwap;
    action.swap_out = candidate.dead;
    action.release = releases[i];
    action.swap_in = swap_ins[i];
    if (action.release == kNone) {
      const EventId last = candidate.first_unpack == kNone ? candidate.gap_last - 1 : action.swap_in;
      action.release = std::max(waits_[last], candidate.dead);
    }
  }
  for (const Return& r : returns_) {
    const StorageId storage = candidates_[r.candidate].storage;
    if (plan.actions[storage].kind == ActionKind::kSwap) {
      plan.swap_in_order.push_back(storage);
    }
  }
  std::stable_sort(plan.swap_in_order.begin(), plan.swap_in_order.end(), [&plan](StorageId a, StorageId b) {
    return plan.actions[a].swap_in < plan.actions[b].swap_in;
  });
  return plan;
}

} // namespace torchlms
