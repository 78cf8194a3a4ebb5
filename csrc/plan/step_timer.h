// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "plan/cost_model.h"
#include "plan/event_lists.h"
#include "plan/plan.h"
#include "trace/trace.h"

namespace torchlms {

// The simulator for searches, which want one number from thousands of plans: looks only at events where
// something is swapped. Agrees with simulate_swaps() but for rounding errors. Keeps its memory from one call
// to the next. Thread-safety: none.
class StepTimer {
 public:
  StepTimer(size_t num_events, size_t num_storages);

  double step_us(const Trace& shown, const Plan& plan, const CostModel& costs);

 private:
  void list(const Trace& shown, const Plan& plan);
  void mark(EventId event) {
    marks_[event / 64] |= uint64_t{1} << (event % 64);
  }

  EventLists needs_;
  EventLists starts_;
  EventLists releases_;
  std::vector<uint64_t> marks_; // a bit per event at which something is swapped
  std::vector<double> done_us_; // by StorageId: end of its last copy
};

} // namespace torchlms
