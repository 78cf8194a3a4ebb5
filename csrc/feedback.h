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
  struct Step {
    double took_us = 0;
    bool evicted = false; // something that no plan foresaw
  };
  enum class Next : uint8_t { kStay, kReplan, kTryOthers };
  // The plan of that policy, from the step that was noted last and what has been seen of fragmentation.
  using MakeFn = std::function<ProgramPtr(PlanPolicy)>;

  explicit Feedback(PlanPolicy policy) : users_policy_(policy), policy_(policy) {}

  // A step that followed `program` has ended.
  Next note(const ProgramPtr& program, const Step& step);
  // What follows kTryOthers: the next plan that may be faster than all that were tried, or, when none is left, the
  // one that was fastest. Makes one as before when no step was noted.
  ProgramPtr choose(const MakeFn& make);

  PlanPolicy policy() const { // of the plan that is followed
    return policy_;
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
    PlanPolicy policy = PlanPolicy::kAuto;
  };
  double recent_us() const; // of the last two steps, the faster
  void add_others(const MakeFn& make);

  const PlanPolicy users_policy_;
  PlanPolicy policy_;
  ProgramPtr program_; // of the steps below
  std::vector<double> took_us_;
  int num_evicting_ = 0; // in a row, up to now, since the plan or starts_clean_ changed
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
