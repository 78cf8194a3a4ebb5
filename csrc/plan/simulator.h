// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "export.h"
#include "plan/cost_model.h"
#include "plan/plan.h"
#include "trace/trace.h"

namespace torchlms {

// [start_us, end_us) of the link moved the storage, or of compute rebuilt it.
struct Interval {
  StorageId storage = kNone;
  double start_us = 0;
  double end_us = 0;
};

// What a plan does to a step. Times are microseconds since scope entry, stalls included.
struct Timeline {
  Bytes peak_bytes = 0;
  EventId peak_event = kNone;
  double step_us = 0;
  double stall_us = 0; // compute waiting for the link
  double recompute_us = 0;
  std::vector<double> event_us; // per event of the trace
  std::vector<Bytes> held_bytes; // per event: highest held between the previous event and this one
  std::vector<Interval> out;
  std::vector<Interval> in;
  std::vector<Interval> recompute;
};

// Runs `plan` over `trace` without tensors: one compute engine, one serial engine per direction.
// A swap-out queues at its swap_out event and frees its block when the copy ends, at its release
// event at the latest, where compute waits for it; a prefetch takes its memory when it is issued;
// the first need of a storage that is not there waits. What is recomputed goes at its kDead event and is
// rebuilt inside its first need, after the wait and the prefetches of that event. Requires: validate(trace, plan) finds no broken position.
TORCHLMS_EXPORT Timeline simulate(const Trace& trace, const Plan& plan, const CostModel& costs);

// The same without the intervals of `recompute`, for a trace that shows what is recomputed already; see
// RecomputeSchedule. Actions other than swaps are not looked at.
Timeline simulate_swaps(const Trace& shown, const Plan& plan, const CostModel& costs);

} // namespace torchlms
