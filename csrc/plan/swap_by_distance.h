// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "plan/cost_model.h"
#include "plan/plan.h"
#include "trace/trace.h"

namespace torchlms {

// The policy "swap". Budgets are in the bytes of the trace. Of the plan only the actions and the swap-in
// order are filled in.

// Swaps the storages with the longest distance between the two uses first; which ones, and how far ahead
// each comes back, is found by search in the simulator. The step time never rises with the budget.
// Requires: floor_bytes <= budget_bytes < trace.unlimited_peak_bytes().
Plan swap_by_distance(const Trace& trace, const CostModel& costs, Bytes floor_bytes, Bytes budget_bytes);

// Swaps all that may be, within the smallest budget that works.
Plan swap_everything(const Trace& trace, const CostModel& costs, Bytes floor_bytes);

} // namespace torchlms
