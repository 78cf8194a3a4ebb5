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

// A plan that differs from all others, unless `moves` says what it moves, one bit for each of eight storages.
ProgramPtr predicted(double step_us, bool fits = true, uint8_t moves = 0) {
  static uint8_t last = 0;
  moves = moves == 0 ? ++last : moves;
  Plan plan;
  plan.predicted_step_us = step_us;
  plan.fits = fits;
  for (int i = 0; i < 8; ++i) {
    plan.actions.push_back({(moves >> i) & 1 ? ActionKind::kSwap : ActionKind::kKeep});
  }
  return std::make_shared<const Program>(
      Trace(), std::move(plan), std::vector<uint64_t>(), /*entry_bytes=*/0, /*has_room=*/false);
}

Feedback::Step step(double took_us) {
  return {took_us};
}

Feedback::Step evicting(double took_us, Bytes wasted_bytes = 0) {
  return {took_us, true, wasted_bytes};
}

// Two steps that evict, and two more, which begin with nothing cached.
Next note_evictions(Feedback& feedback, const ProgramPtr& program, double took_us, Bytes wasted_bytes = 0) {
  feedback.note(predicted(1), step(took_us)); // it is corrected once already
  Next next = Next::kStay;
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(next, Next::kStay);
    next = feedback.note(program, evicting(took_us, wasted_bytes));
  }
  return next;
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

TEST(Feedback, StepsBeginWithNothingCachedOnceTwoInARowHaveEvicted) {
  Feedback feedback(PlanPolicy::kAuto);
  const ProgramPtr program = predicted(100);
  feedback.note(program, evicting(150));
  EXPECT_FALSE(feedback.starts_clean());
  EXPECT_EQ(feedback.note(program, evicting(150)), Next::kStay);
  EXPECT_TRUE(feedback.starts_clean());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(feedback.note(program, step(100)), Next::kStay); // that helped
  }
  EXPECT_TRUE(feedback.starts_clean());
}

TEST(Feedback, OtherPlansAreTriedInTheOrderOfTheirPredictionsUntilNoneCanBeFaster) {
  Feedback feedback(PlanPolicy::kAuto);
  const ProgramPtr slow = predicted(100);
  ASSERT_EQ(note_evictions(feedback, slow, 150, 7), Next::kTryOthers);
  Maker make = maker(110, 155, 120, 115);
  const auto choose = [&] { return feedback.choose([&](const Approach& a) { return make(a); }); };

  const ProgramPtr spares = make.programs[PlanPolicy::kAuto];
  EXPECT_EQ(choose(), spares);
  ASSERT_EQ(make.asked.size(), 5);
  for (const Approach& approach : make.asked) {
    EXPECT_EQ(approach.spared_bytes, &approach == &make.asked.back() ? 7 : 0);
  }
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
}

TEST(Feedback, ThePlanThatWasFastestIsFollowedAgain) {
  Feedback feedback(PlanPolicy::kAuto);
  const ProgramPtr first = predicted(100);
  ASSERT_EQ(note_evictions(feedback, first, 150), Next::kTryOthers);
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
  ASSERT_EQ(note_evictions(feedback, slow, 150, 9), Next::kTryOthers);
  Maker make = maker(1, 110, 1, 1);
  EXPECT_EQ(
      feedback.choose([&](const Approach& approach) { return make(approach); }),
      make.programs[PlanPolicy::kSwap]);
  EXPECT_EQ(make.asked.back().spared_bytes, 9);
  for (const Approach& approach : make.asked) {
    EXPECT_EQ(approach.policy, PlanPolicy::kSwap);
  }
}

TEST(Feedback, APlanThatMovesWhatAnotherOneMovesIsNotTried) {
  Feedback feedback(PlanPolicy::kAuto);
  const ProgramPtr slow = predicted(100, true, 0xf0);
  ASSERT_EQ(note_evictions(feedback, slow, 150), Next::kTryOthers);
  EXPECT_EQ(feedback.choose([&](const Approach&) { return predicted(90, true, 0xf0); }), slow);
}

TEST(Feedback, APlanThatEvictsIsTriedAgainWithAsMuchSparedAsItWasted) {
  Feedback feedback(PlanPolicy::kSwap);
  const ProgramPtr slow = predicted(100);
  note_evictions(feedback, slow, 150, 5);
  std::vector<Bytes> spared;
  const auto choose = [&] {
    return feedback.choose([&](const Approach& approach) {
      spared.push_back(approach.spared_bytes);
      return predicted(110.0 + static_cast<double>(approach.spared_bytes));
    });
  };
  ProgramPtr next = choose(); // nothing spared
  next = (feedback.note(next, evicting(148, 6)), feedback.note(next, evicting(148, 6)), choose());
  EXPECT_EQ(feedback.approach().spared_bytes, 5);
  next = (feedback.note(next, evicting(140, 9)), feedback.note(next, evicting(140, 9)), choose());
  EXPECT_EQ(feedback.approach().spared_bytes, 6);
  EXPECT_EQ(spared, (std::vector<Bytes>{0, 5, 6, 9}));
}

TEST(Feedback, APlanThatDoesNotFitIsNotTried) {
  Feedback feedback(PlanPolicy::kHybrid);
  const ProgramPtr slow = predicted(100);
  ASSERT_EQ(note_evictions(feedback, slow, 150), Next::kTryOthers);
  const ProgramPtr unfit = predicted(50, /*fits=*/false);
  EXPECT_EQ(feedback.choose([&](const Approach&) { return unfit; }), slow);
}

} // namespace
} // namespace torchlms
