// SPDX-License-Identifier: BSD-3-Clause
#include "feedback.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace torchlms {
namespace {

using Next = Feedback::Next;
using Approach = Feedback::Approach;

ProgramPtr predicted(double step_us, bool fits = true) {
  Plan plan;
  plan.predicted_step_us = step_us;
  plan.fits = fits;
  return std::make_shared<const Program>(
      Trace(), std::move(plan), std::vector<uint64_t>(), /*entry_bytes=*/0, /*has_room=*/false);
}

Feedback::Step step(double took_us) {
  return {took_us};
}

Feedback::Step evicting(double took_us, Bytes wasted_bytes = 0) {
  return {took_us, true, wasted_bytes};
}

// Makes plans that the simulator predicts to take so long, by policy, and remembers what it was asked for.
struct Maker {
  std::map<PlanPolicy, ProgramPtr> programs;
  std::vector<Approach> asked;

  ProgramPtr operator()(const Approach& approach) {
    asked.push_back(approach);
    return programs.at(approach.policy);
  }
};

Maker maker(double automatic, double swap, double recompute, double hybrid) {
  return {
      {{PlanPolicy::kAuto, predicted(automatic)},
       {PlanPolicy::kSwap, predicted(swap)},
       {PlanPolicy::kRecompute, predicted(recompute)},
       {PlanPolicy::kHybrid, predicted(hybrid)}},
      {}};
}

TEST(Feedback, APlanThatTakesWhatWasPredictedStays) {
  Feedback feedback(PlanPolicy::kAuto);
  const ProgramPtr program = predicted(100);
  for (const double took_us : {104.0, 96.0, 130.0}) { // the third tells no more of the plan
    EXPECT_EQ(feedback.note(program, step(took_us)), Next::kStay);
  }
  EXPECT_EQ(feedback.measured_us(), 104);
}

TEST(Feedback, APlanIsMadeAnewAfterItsFirstStepAndAfterTheSecondOfTheNext) {
  Feedback feedback(PlanPolicy::kSwap);
  EXPECT_EQ(feedback.note(predicted(100), step(120)), Next::kReplan);
  const ProgramPtr second = predicted(110);
  EXPECT_EQ(feedback.note(second, step(130)), Next::kStay);
  EXPECT_EQ(feedback.note(second, step(125)), Next::kReplan);
  const ProgramPtr third = predicted(100);
  EXPECT_EQ(feedback.note(third, step(150)), Next::kStay);
  EXPECT_EQ(feedback.note(third, step(150)), Next::kStay); // twice is enough
  EXPECT_EQ(feedback.measured_us(), 150);
}

TEST(Feedback, OneSlowStepOfTwoChangesNothing) {
  for (const bool is_first : {true, false}) {
    Feedback feedback(PlanPolicy::kAuto);
    feedback.note(predicted(50), step(100)); // whatever comes now is of a second plan
    const ProgramPtr program = predicted(100);
    EXPECT_EQ(feedback.note(program, step(is_first ? 150 : 100)), Next::kStay);
    EXPECT_EQ(feedback.note(program, step(is_first ? 100 : 150)), Next::kStay);
  }
}

TEST(Feedback, AutoTriesOthersWhereAPlanOfNewTimesIsSlowerThanPredicted) {
  Feedback feedback(PlanPolicy::kAuto);
  ASSERT_EQ(feedback.note(predicted(100), step(120)), Next::kReplan);
  const ProgramPtr slow = predicted(110);
  EXPECT_EQ(feedback.note(slow, step(130)), Next::kStay);
  EXPECT_EQ(feedback.note(slow, step(125)), Next::kTryOthers);
}

TEST(Feedback, AutoPlansAnewWhereAPlanOfNewTimesIsFasterThanPredicted) {
  Feedback feedback(PlanPolicy::kAuto);
  ASSERT_EQ(feedback.note(predicted(100), step(120)), Next::kReplan);
  const ProgramPtr fast = predicted(110);
  EXPECT_EQ(feedback.note(fast, step(90)), Next::kStay);
  EXPECT_EQ(feedback.note(fast, step(90)), Next::kReplan);
}

TEST(Feedback, OneStepThatEvictsChangesNothing) {
  Feedback feedback(PlanPolicy::kAuto);
  const ProgramPtr program = predicted(100);
  for (const auto& one : {step(100), step(100), evicting(200), step(100), evicting(200), step(100)}) {
    EXPECT_EQ(feedback.note(program, one), Next::kStay);
  }
}

TEST(Feedback, EvictionsThatCostNoTimeChangeNothing) {
  Feedback feedback(PlanPolicy::kAuto);
  const ProgramPtr program = predicted(100);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(feedback.note(program, evicting(103)), Next::kStay);
  }
}

TEST(Feedback, OtherPlansAreTriedInTheOrderOfTheirPredictionsUntilNoneCanBeFaster) {
  Feedback feedback(PlanPolicy::kAuto);
  const ProgramPtr slow = predicted(100);
  feedback.note(slow, step(100)); // of no more account
  feedback.note(slow, evicting(150));
  ASSERT_EQ(feedback.note(slow, evicting(160, 7)), Next::kTryOthers);
  Maker make = maker(110, 155, 120, 115);
  const auto choose = [&] { return feedback.choose([&](const Approach& a) { return make(a); }); };

  const ProgramPtr spares = make.programs[PlanPolicy::kAuto];
  EXPECT_EQ(choose(), spares);
  ASSERT_EQ(make.asked.size(), 4);
  EXPECT_EQ(make.asked[0].spared_bytes, 7);
  EXPECT_EQ(make.asked[1].spared_bytes, 0);
  EXPECT_EQ(feedback.note(spares, evicting(140)), Next::kStay);
  EXPECT_EQ(feedback.note(spares, evicting(141)), Next::kTryOthers);

  const ProgramPtr hybrid = make.programs[PlanPolicy::kHybrid];
  EXPECT_EQ(choose(), hybrid);
  EXPECT_EQ(feedback.approach().policy, PlanPolicy::kHybrid);
  EXPECT_EQ(feedback.note(hybrid, step(118)), Next::kStay);
  EXPECT_EQ(feedback.note(hybrid, step(119)), Next::kTryOthers);
  EXPECT_EQ(choose(), hybrid); // recompute would take 120
  EXPECT_EQ(feedback.note(hybrid, evicting(200)), Next::kStay);
  EXPECT_EQ(feedback.note(hybrid, evicting(200)), Next::kStay); // settled
  EXPECT_EQ(make.asked.size(), 4);
}

TEST(Feedback, ThePlanThatWasFastestIsFollowedAgain) {
  Feedback feedback(PlanPolicy::kAuto);
  const ProgramPtr first = predicted(100);
  feedback.note(first, evicting(150));
  ASSERT_EQ(feedback.note(first, evicting(150)), Next::kTryOthers);
  Maker make = maker(110, 170, 120, 170);
  const auto choose = [&] { return feedback.choose([&](const Approach& a) { return make(a); }); };
  for (const PlanPolicy policy : {PlanPolicy::kAuto, PlanPolicy::kRecompute}) {
    ASSERT_EQ(choose(), make.programs[policy]);
    feedback.note(make.programs[policy], step(180));
    ASSERT_EQ(feedback.note(make.programs[policy], step(160)), Next::kTryOthers);
  }
  EXPECT_EQ(choose(), first);
  EXPECT_EQ(feedback.approach().policy, PlanPolicy::kAuto);
}

TEST(Feedback, ASinglePolicyOnlySparesWhatWasWasted) {
  Feedback feedback(PlanPolicy::kSwap);
  const ProgramPtr slow = predicted(100);
  feedback.note(slow, evicting(150, 3));
  ASSERT_EQ(feedback.note(slow, evicting(150, 9)), Next::kTryOthers);
  Maker make = maker(1, 110, 1, 1);
  EXPECT_EQ(
      feedback.choose([&](const Approach& approach) { return make(approach); }),
      make.programs[PlanPolicy::kSwap]);
  ASSERT_EQ(make.asked.size(), 1);
  EXPECT_EQ(make.asked[0].spared_bytes, 9);
}

TEST(Feedback, APlanThatDoesNotFitIsNotTried) {
  Feedback feedback(PlanPolicy::kHybrid);
  const ProgramPtr slow = predicted(100);
  feedback.note(slow, evicting(150));
  ASSERT_EQ(feedback.note(slow, evicting(150)), Next::kTryOthers);
  const ProgramPtr unfit = predicted(50, /*fits=*/false);
  EXPECT_EQ(feedback.choose([&](const Approach&) { return unfit; }), slow);
}

} // namespace
} // namespace torchlms
