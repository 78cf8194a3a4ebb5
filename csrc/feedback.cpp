// SPDX-License-Identifier: BSD-3-Clause
#include "feedback.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "median.h"
#include "step_times.h"

namespace torchlms {

namespace {

constexpr double kTolerance = 0.05; // a plan whose time is further off is made anew
constexpr int kMostReplans = 2;
constexpr size_t kEnoughSteps = 2; // the first of a plan may pay for new blocks
constexpr size_t kMostPlans = 8; // tried

std::vector<ActionKind> kinds(const Plan& plan) {
  std::vector<ActionKind> all;
  for (const Action& action : plan.actions) {
    all.push_back(action.kind);
  }
  return all;
}

} // namespace

Feedback::Next Feedback::note(const ProgramPtr& program, const Step& step) {
  if (program != program_) {
    program_ = program;
    took_us_.clear();
    num_evicting_ = 0;
  }
  if (took_us_.size() == StepTimes::kMostSteps) {
    took_us_.erase(took_us_.begin());
  }
  took_us_.push_back(step.took_us);
  num_evicting_ = step.evicted ? num_evicting_ + 1 : 0;
  const size_t num_steps = took_us_.size();
  const double predicted_us = program->plan().predicted_step_us;
  const double off_us = recent_us() - predicted_us;
  const bool is_off = std::abs(off_us) > kTolerance * predicted_us;
  const bool is_slow = is_off && off_us > 0;
  if (is_settled_) {
    return Next::kStay;
  }
  if (is_trying_) {
    return num_steps >= kEnoughSteps ? Next::kTryOthers : Next::kStay;
  }
  // One step may evict because a copy was late once.
  if (is_slow && num_evicting_ >= static_cast<int>(kEnoughSteps)) {
    if (starts_clean_) {
      return Next::kTryOthers;
    }
    starts_clean_ = true;
    num_evicting_ = 0;
    return Next::kStay;
  }
  // The recorded step pays for first touches and for kernels that are made at their first use, so the first
  // executed one knows the times better; the second of a plan tells how good its prediction is.
  if (num_replans_ > 0 && is_slow && num_steps == kEnoughSteps && users_policy_ == PlanPolicy::kAuto) {
    return Next::kTryOthers;
  }
  const bool may_tell = num_steps == kEnoughSteps || (num_steps == 1 && num_replans_ == 0);
  if (may_tell && is_off && num_replans_ < kMostReplans) {
    ++num_replans_;
    return Next::kReplan;
  }
  return Next::kStay;
}

// The second step of a plan may be slow for reasons of its own, the first one too.
double Feedback::recent_us() const {
  return *std::min_element(
      took_us_.end() - static_cast<ptrdiff_t>(std::min(kEnoughSteps, took_us_.size())), took_us_.end());
}

ProgramPtr Feedback::choose(const MakeFn& make) {
  if (took_us_.empty()) {
    return make(policy_);
  }
  const double took_us = recent_us();
  if (!best_.program || took_us < best_us_) {
    best_ = {program_, policy_};
    best_us_ = took_us;
  }
  add_others(make);
  const auto next =
      std::min_element(others_.begin(), others_.end(), [](const Candidate& a, const Candidate& b) {
        return a.program->plan().predicted_step_us < b.program->plan().predicted_step_us;
      });
  is_settled_ = next == others_.end() || next->program->plan().predicted_step_us >= best_us_;
  const Candidate chosen = is_settled_ ? best_ : *next;
  if (is_settled_) {
    others_.clear();
    known_.clear();
  } else {
    others_.erase(next);
  }
  policy_ = chosen.policy;
  return chosen.program;
}

void Feedback::add_others(const MakeFn& make) {
  std::vector<PlanPolicy> policies;
  if (!is_trying_) {
    is_trying_ = true;
    known_.push_back(kinds(program_->plan()));
    policies = {policy_};
    if (users_policy_ == PlanPolicy::kAuto) {
      policies.insert(policies.end(), {PlanPolicy::kSwap, PlanPolicy::kRecompute, PlanPolicy::kHybrid});
    }
  } else if (num_evicting_ >= static_cast<int>(kEnoughSteps)) {
    policies = {policy_}; // more is known of fragmentation
  }
  for (const PlanPolicy policy : policies) {
    if (known_.size() == kMostPlans) {
      return;
    }
    ProgramPtr program = make(policy);
    const std::vector<ActionKind> moves = kinds(program->plan());
    if (program->plan().fits && std::find(known_.begin(), known_.end(), moves) == known_.end()) {
      known_.push_back(moves);
      others_.push_back({std::move(program), policy});
    }
  }
}

double Feedback::measured_us() const {
  std::vector<double> samples = took_us_;
  return samples.empty() ? 0 : median(samples);
}

} // namespace torchlms
