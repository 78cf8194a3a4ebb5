// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "export.h"
#include "trace/trace.h"

namespace torchlms {

// How long the ops of one program take, by the last steps that followed it: those of a single step are as noisy as
// the machine. Steps are of one program when their events are the same, in the same order.
//
// A plain value, not thread-safe.
class TORCHLMS_EXPORT StepTimes {
 public:
  static constexpr size_t kMostSteps = 8; // remembered

  // Forgets the steps of another program.
  void note(const Trace& trace);
  // Gives events and ops their median times, all scaled alike so that the step takes the median of the steps. False:
  // nothing is known of this program, and the trace is as it was.
  bool apply(Trace& trace) const;

 private:
  struct Step {
    std::vector<double> event_us; // since the event before
    std::vector<double> op_us;
  };

  uint64_t signature_ = 0; // of the events
  std::deque<Step> steps_; // oldest first
};

} // namespace torchlms
