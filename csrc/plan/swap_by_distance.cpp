// SPDX-License-Identifier: BSD-3-Clause
#include "plan/swap_by_distance.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "plan/design.h"
#include "plan/simulator.h"
#include "plan/swap_schedule.h"

namespace torchlms {

namespace {

// Note [Budget levels]
// A search that starts afresh at each budget may be lucky at a small one and unlucky at a larger one.
// So sets of swaps are searched for at fixed levels between the floor and the unlimited peak, and a
// budget gets the best of all levels up to it, each with its releases as late as that budget allows.
// More budget means more levels and later releases, neither of which costs time.
constexpr int kNumLevels = 32;

// Simulations per pass, which bound the time of a search; the rest of a longer list is not looked at.
constexpr size_t kMaxDrops = 32;
constexpr size_t kMaxExchanges = 12;
constexpr int kMaxRounds = 2;

struct SwapDesign {
  Selection selected;
  PrefetchRule rule;
  Score score; // at the level it was searched for
};

class Search {
 public:
  Search(const Trace& trace, const CostModel& costs) : trace_(trace), costs_(costs), schedule_(trace) {
    by_distance_.resize(candidates().size());
    std::iota(by_distance_.begin(), by_distance_.end(), 0);
    std::stable_sort(by_distance_.begin(), by_distance_.end(), [this](int32_t a, int32_t b) {
      const Candidate& x = candidates()[a];
      const Candidate& y = candidates()[b];
      return x.distance_us != y.distance_us ? x.distance_us > y.distance_us : x.storage < y.storage;
    });
    by_size_ = by_distance_;
    std::reverse(by_size_.begin(), by_size_.end());
    std::stable_sort(by_size_.begin(), by_size_.end(), [this](int32_t a, int32_t b) {
      return candidates()[a].size_bytes > candidates()[b].size_bytes;
    });
  }

  Plan best_plan(Bytes floor_bytes, Bytes budget_bytes);
  Plan plan_of_everything(Bytes floor_bytes) const;

 private:
  const std::vector<Candidate>& candidates() const {
    return schedule_.candidates();
  }

  Plan plan(const Selection& selected, const PrefetchRule& rule, Bytes level) const {
    return schedule_.plan(selected, schedule_.swap_ins(selected, level, rule), level, {});
  }
  Score score(const Plan& plan) const;
  Score score(const Selection& selected, const PrefetchRule& rule, Bytes level) const {
    return score(plan(selected, rule, level));
  }

  bool can_drop(const std::vector<Bytes>& held, int32_t candidate, Bytes level) const;
  void drop_redundant(Selection& selected, Bytes level, int32_t except) const;
  bool repair(Selection& selected, Bytes level, int32_t except) const;
  Selection threshold(Bytes level) const;

  bool try_selection(SwapDesign& design, const Selection& selected, Bytes level) const;
  bool drop_pass(SwapDesign& design, Bytes level) const;
  bool exchange_pass(SwapDesign& design, Bytes level) const;
  bool rule_pass(SwapDesign& design, Bytes level) const;
  SwapDesign improve(SwapDesign design, Bytes level) const;

  const Trace& trace_;
  const CostModel& costs_;
  SwapSchedule schedule_;
  std::vector<int32_t> by_distance_; // longest first
  std::vector<int32_t> by_size_; // largest first, then shortest distance first
};

Score Search::score(const Plan& plan) const {
  Score score;
  score.step_us = simulate(trace_, plan, costs_).step_us;
  for (const Candidate& candidate : candidates()) {
    const Action& action = plan.actions[candidate.storage];
    if (action.kind == ActionKind::kSwap) {
      score.link_bytes += candidate.size_bytes * (action.swap_in == kNone ? 1 : 2);
      ++score.num_actions;
    }
  }
  return score;
}

bool Search::can_drop(const std::vector<Bytes>& held, int32_t candidate, Bytes level) const {
  const Candidate& c = candidates()[candidate];
  const Bytes limit = level - c.size_bytes;
  return std::all_of(held.begin() + c.dead + 1, held.begin() + c.gap_last + 1, [limit](Bytes bytes) {
    return bytes <= limit;
  });
}

// Drops swaps as long as the rest fits on demand, shortest distance first.
void Search::drop_redundant(Selection& selected, Bytes level, int32_t except) const {
  std::vector<Bytes> held = schedule_.held_on_demand(selected);
  for (auto i = by_distance_.rbegin(); i != by_distance_.rend(); ++i) {
    if (*i == except || !selected[*i] || !can_drop(held, *i, level)) {
      continue;
    }
    selected[*i] = 0;
    const Candidate& dropped = candidates()[*i];
    for (EventId id = dropped.dead + 1; id <= dropped.gap_last; ++id) {
      held[id] += dropped.size_bytes;
    }
  }
}

// Adds swaps until the selection fits on demand: where most is missing, the smallest that suffices, else
// the largest. False: only `except` would help.
bool Search::repair(Selection& selected, Bytes level, int32_t except) const {
  while (true) {
    const std::vector<Bytes> held = schedule_.held_on_demand(selected);
    const auto worst = std::max_element(held.begin(), held.end());
    const Bytes missing = *worst - level;
    if (missing <= 0) {
      return true;
    }
    const auto where = static_cast<EventId>(worst - held.begin());
    std::optional<int32_t> best;
    for (const int32_t i : by_size_) {
      const Candidate& c = candidates()[i];
      if (i == except || selected[i] || where <= c.dead || where > c.gap_last) {
        continue;
      }
      if (best && c.size_bytes < missing) {
        break;
      }
      best = i;
    }
    if (!best) {
      return false;
    }
    selected[*best] = 1;
  }
}

// The longest distances, as few as fit: fewer swaps never hold less, so bisection finds them.
Selection Search::threshold(Bytes level) const {
  const auto longest = [this](size_t count) {
    Selection selected(candidates().size(), 0);
    for (size_t i = 0; i < count; ++i) {
      selected[by_distance_[i]] = 1;
    }
    return selected;
  };
  size_t low = 0;
  size_t high = candidates().size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const std::vector<Bytes> held = schedule_.held_on_demand(longest(middle));
    if (*std::max_element(held.begin(), held.end()) <= level) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return longest(low);
}

bool Search::try_selection(SwapDesign& design, const Selection& selected, Bytes level) const {
  const Score found = score(selected, design.rule, level);
  if (!(found < design.score)) {
    return false;
  }
  design.selected = selected;
  design.score = found;
  return true;
}

// Drops swaps that memory has room for, the one that saves most time first.
bool Search::drop_pass(SwapDesign& design, Bytes level) const {
  const std::vector<Bytes> held = schedule_.held_on_demand(design.selected);
  std::vector<std::pair<Score, int32_t>> drops;
  for (const int32_t i : by_size_) {
    if (drops.size() < kMaxDrops && design.selected[i] && can_drop(held, i, level)) {
      Selection without = design.selected;
      without[i] = 0;
      drops.emplace_back(score(without, design.rule, level), i);
    }
  }
  std::stable_sort(
      drops.begin(), drops.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  bool has_improved = false;
  for (const auto& [unused, i] : drops) {
    if (can_drop(schedule_.held_on_demand(design.selected), i, level)) {
      Selection without = design.selected;
      without[i] = 0;
      has_improved |= try_selection(design, without, level);
    }
  }
  return has_improved;
}

// Exchanges one swap for others that fit better: drops one and adds what is then missing, or adds one,
// which may pay by itself (room for prefetches), and drops what it makes redundant.
bool Search::exchange_pass(SwapDesign& design, Bytes level) const {
  bool has_improved = false;
  size_t num_tried = 0;
  for (size_t k = 0; k < by_size_.size() && num_tried < kMaxExchanges; ++k) {
    const int32_t i = by_size_[k];
    if (design.selected[i]) {
      Selection without = design.selected;
      without[i] = 0;
      if (repair(without, level, i)) {
        drop_redundant(without, level, i);
        has_improved |= try_selection(design, without, level);
        ++num_tried;
      }
    }
  }
  num_tried = 0;
  for (size_t k = 0; k < by_distance_.size() && num_tried < kMaxExchanges; ++k) {
    const int32_t i = by_distance_[k];
    if (!design.selected[i]) {
      Selection with = design.selected;
      with[i] = 1;
      has_improved |= try_selection(design, with, level);
      drop_redundant(with, level, i);
      has_improved |= try_selection(design, with, level);
      ++num_tried;
    }
  }
  return has_improved;
}

bool Search::rule_pass(SwapDesign& design, Bytes level) const {
  bool has_improved = false;
  for (const bool may_overtake : {false, true}) {
    for (const int32_t num_unpacks : kNumUnpacksAhead) {
      const PrefetchRule rule{num_unpacks, may_overtake};
      const Score found = score(design.selected, rule, level);
      if (found < design.score) {
        design.rule = rule;
        design.score = found;
        has_improved = true;
      }
    }
  }
  return has_improved;
}

SwapDesign Search::improve(SwapDesign design, Bytes level) const {
  for (int round = 0; round < kMaxRounds; ++round) {
    bool has_improved = drop_pass(design, level);
    has_improved |= exchange_pass(design, level);
    has_improved |= rule_pass(design, level);
    if (!has_improved) {
      break;
    }
  }
  return design;
}

Plan Search::best_plan(Bytes floor_bytes, Bytes budget_bytes) {
  const auto range = static_cast<double>(trace_.unlimited_peak_bytes() - floor_bytes);
  SwapDesign design{Selection(candidates().size(), 1), PrefetchRule(), Score()};
  std::optional<std::pair<Score, Plan>> best;
  for (int i = 0; i < kNumLevels; ++i) {
    const Bytes level = floor_bytes + static_cast<Bytes>(range * i / kNumLevels);
    if (level > budget_bytes) {
      break;
    }
    design.score = score(design.selected, design.rule, level);
    try_selection(design, threshold(level), level);
    design = improve(std::move(design), level);
    Plan found = schedule_.plan(
        design.selected, schedule_.swap_ins(design.selected, level, design.rule), budget_bytes, {});
    const Score found_score = score(found);
    if (!best || found_score < best->first) {
      best.emplace(found_score, std::move(found));
    }
  }
  return std::move(best->second);
}

Plan Search::plan_of_everything(Bytes floor_bytes) const {
  const Selection selected(candidates().size(), 1);
  std::optional<std::pair<Score, Plan>> best;
  for (const int32_t num_unpacks : kNumUnpacksAhead) {
    const auto swap_ins = schedule_.swap_ins(selected, floor_bytes, PrefetchRule{num_unpacks, false});
    Plan found = schedule_.plan(selected, swap_ins, floor_bytes, selected);
    const Score found_score = score(found);
    if (!best || found_score < best->first) {
      best.emplace(found_score, std::move(found));
    }
  }
  return std::move(best->second);
}

} // namespace

Plan swap_by_distance(const Trace& trace, const CostModel& costs, Bytes floor_bytes, Bytes budget_bytes) {
  return Search(trace, costs).best_plan(floor_bytes, budget_bytes);
}

Plan swap_everything(const Trace& trace, const CostModel& costs, Bytes floor_bytes) {
  return Search(trace, costs).plan_of_everything(floor_bytes);
}

} // namespace torchlms
