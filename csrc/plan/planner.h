// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "plan/cost_model.h"
#include "plan/plan.h"
#include "trace/trace.h"

namespace torchlms {

struct PlanRequest {
  Bytes budget_bytes = 0; // 0: as little as possible ("min")
  Bytes base_delta_bytes = 0; // held at this scope entry minus held at the recorded one
};

// Smallest budget that works for `trace`: the peak with every candidate moved and brought back on
// demand, and where it is reached.
struct Floor {
  Bytes bytes = 0;
  EventId event = kNone;
};
Floor floor_of(const Trace& trace);

// Name of the op or autograd node at `event`, for messages.
std::string name_of_event(const Trace& trace, EventId event);

// A pure function of its arguments: ties are broken by storage id. When the budget is below the
// floor the result has fits == false.
Plan make_plan(const Trace& trace, const CostModel& costs, const PlanRequest& request);

} // namespace torchlms
