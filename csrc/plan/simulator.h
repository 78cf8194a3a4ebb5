// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "plan/cost_model.h"
#include "plan/plan.h"
#include "trace/trace.h"

namespace torchlms {

// One use of the link: [start_us, end_us) moved the storage.
struct LinkInterval {
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
  std::vector<double> event_us; // per event of the trace
  std::vector<Bytes> held_bytes; // per event: highest held between the previous event and this one
  std::vector<LinkInterval> out;
  std::vector<LinkInterval> in;
};

// Runs `plan` over `trace` without tensors: one compute engine, one serial engine per direction.
// A swap-out queues at its swap_out event and frees its block when the copy ends, at its release
// event at the latest, where compute waits for it; a prefetch takes its memory when it is issued;
// an unpack of a storage that is not there waits. Requires: validate(trace, plan) finds no broken position.
Timeline simulate(const Trace& trace, const Plan& plan, const CostModel& costs);

} // namespace torchlms
