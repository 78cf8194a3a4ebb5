// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "plan/cost_model.h"
#include "plan/plan.h"
#include "trace/trace.h"

namespace torchlms {

// Plans that keep nothing that may be swapped or recomputed. Of the plans only the actions and the swap-in
// order are filled in.

// Swaps and recomputes, whichever is faster, within the smallest budget that works.
Plan move_everything(const Trace& trace, const CostModel& costs, Bytes floor_bytes);

// Recomputes all that can be rebuilt and swaps the rest.
struct SizedPlan {
  Plan plan;
  Bytes budget_bytes = 0; // what it needs
};
SizedPlan recompute_everything(const Trace& trace, const CostModel& costs);

} // namespace torchlms
