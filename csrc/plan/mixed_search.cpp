// SPDX-License-Identifier: BSD-3-Clause
#include "plan/mixed_search.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "plan/expansions.h"
#include "plan/flips.h"
#include "plan/segments.h"
#include "plan/simulator.h"
#include "plan/slack_swaps.h"

namespace torchlms {

namespace {

constexpr int kNumLevels = 32;

// Simulations per level, which bound the time of a search. A simulation takes longer the longer the trace
// is: there are fewer where it has more events than this.
constexpr size_t kMaxEvents = 2000;
constexpr int kMaxTurns = 96;
constexpr int kMaxFlips = 96;
constexpr int kMaxPairs = 64;
constexpr int kMaxExchanges = 16;
constexpr int kMaxAlike = 32;

// Levels from one to the next at which to begin afresh.
constexpr size_t kCutsEvery = 4;
constexpr size_t kTurnsEvery = 4;

std::vector<Bytes> levels_between(Bytes floor_bytes, Bytes peak_bytes) {
  std::vector<Bytes> levels;
  const auto range = static_cast<double>(peak_bytes - floor_bytes);
  for (int i = 0; i < kNumLevels; ++i) {
    levels.push_back(floor_bytes + static_cast<Bytes>(range * i / kNumLevels));
  }
  return levels;
}

} // namespace

// Near the floor, where a level has none below it to begin from and every choice costs most, there are more.
int MixedSearch::scaled(int num_trials, size_t level) const {
  const size_t num_events = std::max(bench_.trace().events.size(), kMaxEvents);
  const int times = level < 2 ? 8 : level < 4 ? 4 : level < 8 ? 2 : 1;
  return std::max(1, static_cast<int>(times * num_trials * kMaxEvents / num_events));
}

// Nothing is left to gain.
bool MixedSearch::is_free(const Design& design) const {
  return design.score.step_us <= bench_.trace().step_us();
}

MixedSearch::MixedSearch(const Trace& trace, const CostModel& costs, Bytes floor_bytes)
    : bench_(trace, costs),
      recomputes_(bench_),
      levels_(levels_between(floor_bytes, std::max(floor_bytes, trace.unlimited_peak_bytes()))) {}

// Down the levels each adds to the set of the one above; up again each takes over what was better below.
void MixedSearch::make_recomputes(Bytes budget_bytes) {
  Design design = bench_.keep_everything();
  for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
    recomputes_.extend(design, *level);
    recompute_designs_.push_back(design);
  }
  std::reverse(recompute_designs_.begin(), recompute_designs_.end());
  cuts_ = cut_into_segments(bench_);
  for (size_t i = 0; i < levels_.size() && levels_[i] <= budget_bytes; ++i) {
    Design& here = recompute_designs_[i];
    recomputes_.drop_redundant(here, levels_[i]);
    bench_.fit(here, levels_[i]);
    here.score = bench_.score(here, levels_[i]);
    if (i > 0) {
      Design below = recompute_designs_[i - 1];
      recomputes_.drop_redundant(below, levels_[i]);
      bench_.try_design(here, std::move(below), levels_[i]);
    }
    if (i % kCutsEvery == 0) {
      try_cuts(here, levels_[i], /*may_swap=*/false);
    }
    if (!is_free(here)) {
      recomputes_.exchange(here, levels_[i], i * kMaxExchanges, scaled(kMaxExchanges, i));
    }
  }
}

void MixedSearch::try_cuts(Design& design, Bytes level, bool may_swap) {
  for (const Design& cut : cuts_) {
    Design trial = cut;
    if (bench_.fit(trial, level) &&
        (may_swap ||
         std::find(trial.kinds.begin(), trial.kinds.end(), ActionKind::kSwap) == trial.kinds.end())) {
      recomputes_.drop_redundant(trial, level);
      bench_.try_design(design, std::move(trial), level);
    }
  }
}

void MixedSearch::make_hybrids(Bytes budget_bytes) {
  for (size_t i = 0; i < levels_.size() && levels_[i] <= budget_bytes; ++i) {
    Design design = bench_.keep_everything();
    bench_.swap_by_distance(design, levels_[i]);
    bench_.fit(design, levels_[i]);
    design.score = bench_.score(design, levels_[i]);
    if (i % kTurnsEvery == 0 && !is_free(design)) {
      turn_swaps(bench_, design, levels_[i], scaled(kMaxTurns, i));
    }
    if (i > 0) {
      Design below = hybrid_designs_.back();
      recomputes_.drop_redundant(below, levels_[i]);
      bench_.try_design(design, std::move(below), levels_[i]);
    }
    if (!is_free(design)) {
      turn_swaps(bench_, design, levels_[i], scaled(kMaxTurns / 4, i));
      flip_each(bench_, design, levels_[i], i * kMaxFlips / 2, scaled(kMaxFlips, i));
      bench_.try_rules(design, levels_[i]);
    }
    hybrid_designs_.push_back(std::move(design));
  }
}

// Per level, with what must be recomputed beside it.
MixedSearch::Designs MixedSearch::extended_from(Design design) {
  Designs extended; // from the highest level down
  for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
    recomputes_.extend(design, *level);
    extended.push_back(design);
  }
  std::reverse(extended.begin(), extended.end());
  return extended;
}

void MixedSearch::make_bests(Bytes budget_bytes) {
  Designs by_slack = extended_from(slack_swaps(bench_));
  Designs by_expansion = extended_from(recompute_expansions(bench_));
  for (size_t i = 0; i < levels_.size() && levels_[i] <= budget_bytes; ++i) {
    Design design = std::min(recompute_designs_[i], hybrid_designs_[i], [](const auto& a, const auto& b) {
      return a.score < b.score;
    });
    if (i > 0) {
      Design below = best_designs_.back();
      recomputes_.drop_redundant(below, levels_[i]);
      bench_.try_design(design, std::move(below), levels_[i]);
    }
    if (is_free(design)) {
      best_designs_.push_back(std::move(design));
      continue;
    }
    for (Designs* const starts : {&by_slack, &by_expansion}) {
      recomputes_.drop_redundant((*starts)[i], levels_[i]);
      bench_.try_design(design, std::move((*starts)[i]), levels_[i]);
    }
    if (i % kCutsEvery == 0) {
      try_cuts(design, levels_[i], /*may_swap=*/true);
    }
    turn_swaps(bench_, design, levels_[i], scaled(kMaxTurns / 4, i));
    flip_alike(bench_, design, levels_[i], scaled(kMaxAlike, i));
    flip_each(bench_, design, levels_[i], i * kMaxFlips / 2, scaled(kMaxFlips, i));
    recomputes_.exchange(design, levels_[i], i * kMaxExchanges, scaled(kMaxExchanges, i));
    exchange_pairs(bench_, design, levels_[i], scaled(kMaxPairs, i));
    bench_.try_rules(design, levels_[i]);
    best_designs_.push_back(std::move(design));
  }
}

MixedSearch::Timed MixedSearch::timed(Plan plan) const {
  const double step_us = simulate(bench_.trace(), plan, bench_.costs()).step_us;
  return {{step_us, plan.swapped_bytes(bench_.trace()), 0}, std::move(plan)};
}

MixedSearch::Timed MixedSearch::best_of(const Designs& designs, Bytes budget_bytes) {
  std::optional<Timed> best;
  for (size_t i = 0; i < levels_.size() && levels_[i] <= budget_bytes; ++i) {
    Timed found = timed(bench_.plan(designs[i], levels_[i], budget_bytes));
    if (!best || found.score < best->score) {
      best = std::move(found);
    }
  }
  return std::move(*best);
}

Plan MixedSearch::recompute(Bytes budget_bytes) {
  make_recomputes(budget_bytes);
  return best_of(recompute_designs_, budget_bytes).plan;
}

Plan MixedSearch::hybrid(Bytes budget_bytes) {
  make_hybrids(budget_bytes);
  return best_of(hybrid_designs_, budget_bytes).plan;
}

Plan MixedSearch::best(Bytes budget_bytes, std::optional<Plan> swaps) {
  make_recomputes(budget_bytes);
  make_hybrids(budget_bytes);
  make_bests(budget_bytes);
  Timed best = swaps ? timed(std::move(*swaps)) : best_of(best_designs_, budget_bytes);
  for (const Designs* const designs : {&recompute_designs_, &hybrid_designs_, &best_designs_}) {
    Timed found = best_of(*designs, budget_bytes);
    if (found.score < best.score) {
      best = std::move(found);
    }
  }
  return std::move(best.plan);
}

} // namespace torchlms
