// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "export.h"
#include "plan/cost_model.h"
#include "plan/plan.h"
#include "trace/trace.h"

namespace torchlms {

// kSwap, kRecompute and kHybrid are single ways to plan, each searched only within its own kind. A policy
// uses the other means only for what does not fit otherwise; kSwap never recomputes, whatever is demanded.
enum class PlanPolicy : uint8_t {
  kAuto, // the best of all
  kSwap, // by distance
  kRecompute, // by bytes per second of replay
  kHybrid, // by distance, and the swaps that cost most turned into recomputes
};

struct PlanRequest {
  Bytes budget_bytes = 0; // 0: as little as possible ("min")
  Bytes base_delta_bytes = 0; // held at this scope entry minus held at the recorded one
  PlanPolicy policy = PlanPolicy::kSwap;
};

// Smallest budget that works for `trace` with any policy: the peak with every candidate swapped and brought
// back on demand, and where it is reached.
struct Floor {
  Bytes bytes = 0;
  EventId event = kNone;
};
TORCHLMS_EXPORT Floor floor_of(const Trace& trace);

// Name of the op or autograd node at `event`, for messages.
TORCHLMS_EXPORT std::string name_of_event(const Trace& trace, EventId event);

// A pure function of its arguments: ties are broken by storage id. When the budget is below the floor the
// result has fits == false. With budget 0 nothing is kept that the policy may move; kRecompute may then need
// more than the floor, since it rebuilds all it can.
TORCHLMS_EXPORT Plan make_plan(const Trace& trace, const CostModel& costs, const PlanRequest& request);

} // namespace torchlms
