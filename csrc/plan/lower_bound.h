// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "plan/cost_model.h"
#include "trace/trace.h"

namespace torchlms {

// A time that no plan within the budget can beat, whatever it swaps, recomputes and keeps. Requires: the
// budget is no less than the floor.
double lower_bound_us(const Trace& trace, const CostModel& costs, Bytes budget_bytes);

} // namespace torchlms
