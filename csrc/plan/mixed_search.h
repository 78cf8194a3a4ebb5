// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <vector>

#include "plan/cost_model.h"
#include "plan/design.h"
#include "plan/plan.h"
#include "plan/recompute_search.h"
#include "plan/workbench.h"

namespace torchlms {

// The policies that recompute. Budgets are in the bytes of the trace. Of the plans only the actions and the
// swap-in order are filled in. Like swaps by distance, designs are made at fixed levels of the budget, each
// no worse than the one before: see Note [Budget levels] in swap_by_distance.cpp. For one plan: one of the
// functions may be called, once. Refers to trace and costs. Thread-safety: none.
class MixedSearch {
 public:
  MixedSearch(const Trace& trace, const CostModel& costs, Bytes floor_bytes);

  // Each is never slower with more budget. Requires: floor_bytes <= budget_bytes.
  Plan recompute(Bytes budget_bytes);
  Plan hybrid(Bytes budget_bytes);
  // No slower than the two before and than `swaps`, a plan within the budget.
  Plan best(Bytes budget_bytes, std::optional<Plan> swaps);

 private:
  using Designs = std::vector<Design>; // per level

  void make_recomputes(Bytes budget_bytes);
  void make_hybrids(Bytes budget_bytes);
  void make_bests(Bytes budget_bytes);
  Designs extended_from(Design design);

  // Takes over the best of the designs in segments, with swaps of their boundaries where these must go too.
  void try_cuts(Design& design, Bytes level, bool may_swap);
  int scaled(int num_trials, size_t level) const;
  bool is_free(const Design& design) const;

  struct Timed {
    Score score;
    Plan plan;
  };
  Timed best_of(const Designs& designs, Bytes budget_bytes);
  Timed timed(Plan plan) const;

  Workbench bench_;
  RecomputeSearch recomputes_;
  std::vector<Bytes> levels_; // ascending, from the floor
  Designs cuts_; // into segments, for any level
  Designs recompute_designs_;
  Designs hybrid_designs_;
  Designs best_designs_;
};

} // namespace torchlms
