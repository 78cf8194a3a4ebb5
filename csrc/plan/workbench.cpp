// SPDX-License-Identifier: BSD-3-Clause
#include "plan/workbench.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace torchlms {

Workbench::Workbench(const Trace& trace, const CostModel& costs, bool moves_all)
    : trace_(trace),
      costs_(costs),
      moves_all_(moves_all),
      regions_(trace),
      demands_(demands_of(trace, regions_)),
      makers_(trace.storages.size(), kNone),
      recompute_(trace, regions_),
      timer_(trace.events.size(), trace.storages.size()),
      change_(trace.events.size() + 1),
      recomputed_(trace.storages.size(), 0) {
  recompute_.choose(recomputed_);
  for (const Op& op : trace.ops) {
    for (const ValueId value : trace.written(op)) {
      makers_[trace.values[value].storage] = op.name;
    }
  }
}

Workbench::Frame::Frame(const Trace& shown) : schedule(shown) {
  const std::vector<Candidate>& candidates = schedule.candidates();
  by_distance.resize(candidates.size());
  std::iota(by_distance.begin(), by_distance.end(), 0);
  std::sort(by_distance.begin(), by_distance.end(), [&](int32_t a, int32_t b) {
    const Candidate& x = candidates[a];
    const Candidate& y = candidates[b];
    return x.distance_us != y.distance_us ? x.distance_us > y.distance_us : x.storage < y.storage;
  });
  by_size = by_distance;
  std::reverse(by_size.begin(), by_size.end());
  std::stable_sort(by_size.begin(), by_size.end(), [&](int32_t a, int32_t b) {
    return candidates[a].size_bytes > candidates[b].size_bytes;
  });
  const std::vector<Bytes>& held = schedule.held_when_nothing_is_swapped();
  std::vector<int32_t> segment_of(held.size() + 1, 0);
  for (const Candidate& candidate : candidates) {
    segment_of[candidate.dead + 1] = 1;
    segment_of[candidate.gap_last + 1] = 1;
  }
  int32_t segment = kNone;
  for (size_t i = 0; i < held.size(); ++i) {
    if (i == 0 || segment_of[i] == 1) {
      ++segment;
      kept.push_back(held[i]);
    }
    kept[segment] = std::max(kept[segment], held[i]);
    segment_of[i] = segment;
  }
  for (const Candidate& candidate : candidates) {
    gaps.push_back({segment_of[candidate.dead + 1], segment_of[candidate.gap_last]});
  }
}

void Workbench::choose(const Design& design) {
  Recomputed recomputed(design.kinds.size());
  std::transform(design.kinds.begin(), design.kinds.end(), recomputed.begin(), [](ActionKind kind) {
    return kind == ActionKind::kRecompute;
  });
  if (recomputed_ != recomputed) {
    frame_.reset();
    recompute_.choose(recomputed);
    recomputed_ = std::move(recomputed);
  }
}

const Trace& Workbench::shown(const Design& design) {
  choose(design);
  return recompute_.shown();
}

const std::vector<StorageRecord>& Workbench::storages(const Design& design) {
  choose(design);
  return recompute_.storages();
}

Workbench::Frame& Workbench::frame(const Design& design) {
  const Trace& shown = this->shown(design);
  if (!frame_) {
    frame_.emplace(shown);
    const std::vector<Candidate>& candidates = frame_->schedule.candidates();
    frame_->forced.assign(candidates.size(), moves_all_ ? 1 : 0);
    for (size_t i = 0; i < candidates.size() && has_demands(); ++i) {
      frame_->forced[i] |= demands_[candidates[i].storage] == Demand::kSwap ? 1 : 0;
    }
  }
  return *frame_;
}

bool Workbench::may_be(StorageId id, ActionKind kind) const {
  const Demand demand = has_demands() ? demands_[id] : Demand::kNone;
  if (demand != Demand::kNone) {
    return kind == (demand == Demand::kSwap ? ActionKind::kSwap : ActionKind::kRecompute);
  }
  return kind != ActionKind::kRecompute || regions_.of(id) != nullptr;
}

Design Workbench::keep_everything() const {
  Design design;
  design.kinds.resize(trace_.storages.size(), ActionKind::kKeep);
  for (size_t i = 0; i < demands_.size(); ++i) {
    if (demands_[i] != Demand::kNone) {
      design.kinds[i] = demands_[i] == Demand::kSwap ? ActionKind::kSwap : ActionKind::kRecompute;
    }
  }
  return design;
}

const std::vector<Candidate>& Workbench::candidates(const Design& design) {
  return frame(design).schedule.candidates();
}

std::vector<Bytes> Workbench::held_on_demand(const Design& design) {
  choose(design);
  std::vector<Bytes> held = recompute_.held();
  std::fill(change_.begin(), change_.end(), 0);
  bool has_swaps = false;
  for (size_t i = 0; i < design.kinds.size(); ++i) {
    if (design.kinds[i] != ActionKind::kSwap) {
      continue;
    }
    if (const auto gap = swap_gap(recompute_.storages()[i], trace_)) {
      change_[gap->first] -= trace_.storages[i].size_bytes;
      change_[gap->last + 1] += trace_.storages[i].size_bytes;
      has_swaps = true;
    }
  }
  Bytes away = 0;
  for (size_t i = 0; i < held.size() && has_swaps; ++i) {
    away += change_[i];
    held[i] += away;
  }
  return held;
}

Selection Workbench::selection(const Frame& frame, const Design& design) {
  const std::vector<Candidate>& candidates = frame.schedule.candidates();
  Selection selected(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    selected[i] = frame.forced[i] || design.kinds[candidates[i].storage] == ActionKind::kSwap;
  }
  return selected;
}

void Workbench::take(const Frame& frame, const Selection& selected, Design& design) {
  std::replace(design.kinds.begin(), design.kinds.end(), ActionKind::kSwap, ActionKind::kKeep);
  const std::vector<Candidate>& candidates = frame.schedule.candidates();
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (selected[i]) {
      design.kinds[candidates[i].storage] = ActionKind::kSwap;
    }
  }
}

std::vector<Bytes> Workbench::held(const Frame& frame, const Selection& selected) {
  std::vector<Bytes> change(frame.kept.size() + 1, 0);
  const std::vector<Candidate>& candidates = frame.schedule.candidates();
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (selected[i]) {
      change[frame.gaps[i].first] -= candidates[i].size_bytes;
      change[frame.gaps[i].last + 1] += candidates[i].size_bytes;
    }
  }
  std::vector<Bytes> held(frame.kept.size());
  Bytes away = 0;
  for (size_t i = 0; i < held.size(); ++i) {
    away += change[i];
    held[i] = frame.kept[i] + away;
  }
  return held;
}

// Adds swaps where most is missing: the smallest that suffices, else the largest.
bool Workbench::repair(const Frame& frame, Selection& selected, Bytes level) {
  std::vector<Bytes> held = Workbench::held(frame, selected);
  while (true) {
    const auto worst = std::max_element(held.begin(), held.end());
    if (worst == held.end() || *worst <= level) {
      return true;
    }
    const Bytes missing = *worst - level;
    const auto where = static_cast<int32_t>(worst - held.begin());
    int32_t best = kNone;
    for (const int32_t i : frame.by_size) {
      if (selected[i] || where < frame.gaps[i].first || where > frame.gaps[i].last) {
        continue;
      }
      if (best != kNone && frame.schedule.candidates()[i].size_bytes < missing) {
        break;
      }
      best = i;
    }
    if (best == kNone) {
      return false;
    }
    selected[best] = 1;
    for (int32_t s = frame.gaps[best].first; s <= frame.gaps[best].last; ++s) {
      held[s] -= frame.schedule.candidates()[best].size_bytes;
    }
  }
}

void Workbench::drop_redundant(const Frame& frame, Selection& selected, Bytes level) {
  std::vector<Bytes> held = Workbench::held(frame, selected);
  for (auto i = frame.by_distance.rbegin(); i != frame.by_distance.rend(); ++i) {
    const Segments gap = frame.gaps[*i];
    const Bytes size = frame.schedule.candidates()[*i].size_bytes;
    const auto first = held.begin() + gap.first;
    const auto end = held.begin() + gap.last + 1;
    if (selected[*i] && !frame.forced[*i] &&
        std::all_of(first, end, [&](Bytes bytes) { return bytes <= level - size; })) {
      selected[*i] = 0;
      std::for_each(first, end, [&](Bytes& bytes) { bytes += size; });
    }
  }
}

void Workbench::swap_by_distance(Design& design, Bytes level) {
  const Frame& frame = this->frame(design);
  const auto longest = [&](size_t count) {
    Selection selected = frame.forced;
    std::for_each_n(frame.by_distance.begin(), count, [&](int32_t i) { selected[i] = 1; });
    return selected;
  };
  size_t low = 0;
  size_t high = frame.by_distance.size();
  while (low < high) { // fewer swaps never hold less
    const size_t middle = (low + high) / 2;
    const std::vector<Bytes> held = Workbench::held(frame, longest(middle));
    if (held.empty() || *std::max_element(held.begin(), held.end()) <= level) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  take(frame, longest(low), design);
}

bool Workbench::fit(Design& design, Bytes level) {
  const Frame& frame = this->frame(design);
  Selection selected = selection(frame, design);
  if (!repair(frame, selected, level)) {
    return false;
  }
  drop_redundant(frame, selected, level);
  take(frame, selected, design);
  return true;
}

Plan Workbench::plan(const Design& design, Bytes level, Bytes budget_bytes) {
  const Frame& frame = this->frame(design);
  const Selection selected = selection(frame, design);
  const auto swap_ins = frame.schedule.swap_ins(selected, level, design.rule);
  Plan plan = frame.schedule.plan(selected, swap_ins, budget_bytes, frame.forced);
  for (size_t i = 0; i < design.kinds.size(); ++i) {
    if (design.kinds[i] == ActionKind::kRecompute) {
      plan.actions[i].kind = ActionKind::kRecompute;
    }
  }
  return plan;
}

Score Workbench::score(const Design& design, Bytes level) {
  const Plan plan = this->plan(design, level, level);
  Score score;
  score.step_us = timer_.step_us(shown(design), plan, costs_);
  for (size_t i = 0; i < plan.actions.size(); ++i) {
    const Action& action = plan.actions[i];
    score.num_actions += action.kind == ActionKind::kKeep ? 0 : 1;
    if (action.kind == ActionKind::kSwap) {
      score.link_bytes += trace_.storages[i].size_bytes * (action.swap_in == kNone ? 1 : 2);
    }
  }
  return score;
}

bool Workbench::try_design(Design& design, Design trial, Bytes level) {
  if (!fit(trial, level)) {
    return false;
  }
  trial.score = score(trial, level);
  if (!(trial.score < design.score)) {
    return false;
  }
  design = std::move(trial);
  return true;
}

bool Workbench::try_rules(Design& design, Bytes level) {
  bool has_improved = false;
  for (const bool may_overtake : {false, true}) {
    for (const int32_t num_unpacks : kNumUnpacksAhead) {
      Design trial = design;
      trial.rule = {num_unpacks, may_overtake};
      trial.score = score(trial, level);
      if (trial.score < design.score) {
        design = std::move(trial);
        has_improved = true;
      }
    }
  }
  return has_improved;
}

} // namespace torchlms
