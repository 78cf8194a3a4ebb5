// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "export.h"
#include "plan/planner.h"
#include "program.h"

namespace torchlms {

// What the steps that followed one program's plans say of them: whether to plan anew with the times of the last one,
// or to follow a plan that was made in another way. The simulator knows nothing of fragmented memory, nor of how much
// ops and copies are in each other's way: where a plan is slow, only a step can tell which one is fast.
//
// A plain value, not thread-safe.
class TORCHLMS_EXPORT Feedback {
 public:
  // How a plan is made.
  struct Approach {
    PlanPolicy policy = PlanPolicy::kAuto;
    Bytes spared_bytes = 0; // of the budget, left to fragmentation
  };
  struct Step {
    double took_us = 0;
    bool evicted = false; // something that no plan foresaw
    Bytes wasted_bytes = 0; // of the budget: free, and of no use to an allocation
  };
  enum class Next : uint8_t { kStay, kReplan, kTryOthers };
  // The plan of that approach, from the step that was noted last.
  using MakeFn = std::function<ProgramPtr(const Approach&)>;

  explicit Feedback(PlanPolicy policy) : policy_(policy), approach_{policy} {}

  // A step that followed `program` has ended.
  Next note(const ProgramPtr& program, const Step& step);
  // What follows kTryOthers: the next plan that may be faster than all that were tried, or, when none is left, the
  // one that was fastest. Makes one as before when no step was noted.
  ProgramPtr choose(const MakeFn& make);

  const Approach& approach() const { // of the plan that is followed
    return approach_;
  }
  // Steps evict, so each begins with no memory cached: what the one before left behind would make every step of the
  // same plan another one.
  bool starts_clean() const {
    return starts_clean_;
  }
  double measured_us() const; // of the last steps under the present plan, the median; 0: none has run

 private:
  struct Candidate {
    ProgramPtr program;
    Approach approach;
  };
  double recent_us() const; // of the last two steps, the faster
  void forget_steps();
  void add_others(const MakeFn& make);

  const PlanPolicy policy_; // the user's
  Approach approach_;
  ProgramPtr program_; // of the steps below
  std::vector<double> took_us_;
  int num_evicting_ = 0; // of them, in a row, up to now
  Bytes wasted_bytes_ = 0;
  int num_replans_ = 0;
  bool starts_clean_ = false;
  bool is_trying_ = false;
  bool is_settled_ = false; // all that may be faster was tried
  std::vector<Candidate> others_; // not tried yet
  std::vector<std::vector<ActionKind>> known_; // of plans tried and others_, by storage: none is tried twice
  Candidate best_; // of those tried
  double best_us_ = 0;
};

} // namespace torchlms
