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

Feedback::Step evicting(double took_us) {
  return {took_us, true};
}

// Whose plan was made anew once already.
Feedback corrected(PlanPolicy policy) {
  Feedback feedback(policy);
  EXPECT_EQ(feedback.note(predicted(100), step(120)), Next::kReplan);
  return feedback;
}

// Two steps that evict, and two more, which begin with nothing cached.
Next note_evictions(Feedback& feedback, const ProgramPtr& program, double took_us) {
  feedback.note(predicted(1), step(took_us)); // it is corrected once already
  Next next = Next::kStay;
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(next, Next::kStay);
    next = feedback.note(program, evicting(took_us));
  }
  return next;
}

// Makes plans that the simulator predicts to take so long, by policy, and remembers what it was asked for.
struct Maker {
  std::map<PlanPolicy, ProgramPtr> programs;
  std::vector<PlanPolicy> asked;

  ProgramPtr operator()(PlanPolicy policy) {
    asked.push_back(policy);
    return programs.at(policy);
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
  EXPECT_EQ(feedback.measured_us(), 0);
  for (const double took_us : {104.0, 96.0, 130.0}) { // the third tells no more of the plan
    EXPECT_EQ(feedback.note(program, step(took_us)), Next::kStay);
  }
  EXPECT_EQ(feedback.measured_us(), 104);
  EXPECT_EQ(feedback.note(program, step(110)), Next::kStay);
  EXPECT_EQ(feedback.measured_us(), 107);
}

TEST(Feedback, APlanIsMadeAnewAfterItsFirstStepAndAfterTheSecondOfTheNext) {
  Feedback feedback = corrected(PlanPolicy::kSwap);
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
    Feedback feedback = corrected(PlanPolicy::kAuto);
    const ProgramPtr program = predicted(100);
    EXPECT_EQ(feedback.note(program, step(is_first ? 150 : 100)), Next::kStay);
    EXPECT_EQ(feedback.note(program, step(is_first ? 100 : 150)), Next::kStay);
  }
}

TEST(Feedback, AutoTriesOthersWhereAPlanOfNewTimesIsSlowerThanPredicted) {
  Feedback feedback = corrected(PlanPolicy::kAuto);
  const ProgramPtr slow = predicted(110);
  EXPECT_EQ(feedback.note(slow, step(130)), Next::kStay);
  EXPECT_EQ(feedback.note(slow, step(125)), Next::kTryOthers);
}

TEST(Feedback, AutoPlansAnewWhereAPlanOfNewTimesIsFasterThanPredicted) {
  Feedback feedback = corrected(PlanPolicy::kAuto);
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
  EXPECT_EQ(feedback.measured_us(), 150);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(feedback.note(program, step(100)), Next::kStay); // that helped
  }
  EXPECT_TRUE(feedback.starts_clean());
}

TEST(Feedback, OtherPlansAreTriedInTheOrderOfTheirPredictionsUntilNoneCanBeFaster) {
  Feedback feedback(PlanPolicy::kAuto);
  const ProgramPtr slow = predicted(100);
  ASSERT_EQ(note_evictions(feedback, slow, 150), Next::kTryOthers);
  Maker make = maker(110, 155, 120, 115);
  const auto choose = [&] { return feedback.choose([&](PlanPolicy policy) { return make(policy); }); };

  const ProgramPtr spares = make.programs[PlanPolicy::kAuto];
  EXPECT_EQ(choose(), spares);
  EXPECT_EQ(make.asked.size(), 4);
  EXPECT_EQ(feedback.note(spares, evicting(140)), Next::kStay);
  EXPECT_EQ(feedback.note(spares, evicting(141)), Next::kTryOthers);

  const ProgramPtr hybrid = make.programs[PlanPolicy::kHybrid];
  EXPECT_EQ(choose(), hybrid);
  EXPECT_EQ(feedback.policy(), PlanPolicy::kHybrid);
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
  const auto choose = [&] { return feedback.choose([&](PlanPolicy policy) { return make(policy); }); };
  for (const PlanPolicy policy : {PlanPolicy::kAuto, PlanPolicy::kRecompute}) {
    ASSERT_EQ(choose(), make.programs[policy]);
    feedback.note(make.programs[policy], step(180));
    ASSERT_EQ(feedback.note(make.programs[policy], step(160)), Next::kTryOthers);
  }
  EXPECT_EQ(choose(), first);
  EXPECT_EQ(feedback.policy(), PlanPolicy::kAuto);
}

TEST(Feedback, ASinglePolicyTriesNoOther) {
  Feedback feedback(PlanPolicy::kSwap);
  ASSERT_EQ(note_evictions(feedback, predicted(100), 150), Next::kTryOthers);
  Maker make = maker(1, 110, 1, 1);
  EXPECT_EQ(
      feedback.choose([&](PlanPolicy policy) { return make(policy); }), make.programs[PlanPolicy::kSwap]);
  EXPECT_EQ(make.asked, std::vector<PlanPolicy>{PlanPolicy::kSwap});
}

TEST(Feedback, APlanThatMovesWhatAnotherOneMovesIsNotTried) {
  Feedback feedback(PlanPolicy::kAuto);
  const ProgramPtr slow = predicted(100, true, 0xf0);
  ASSERT_EQ(note_evictions(feedback, slow, 150), Next::kTryOthers);
  EXPECT_EQ(feedback.choose([&](PlanPolicy) { return predicted(90, true, 0xf0); }), slow);
}

TEST(Feedback, WhereAPlanEvictsAnotherOneIsMadeOfWhatIsKnownThen) {
  Feedback feedback(PlanPolicy::kSwap);
  note_evictions(feedback, predicted(100), 150);
  double next_us = 110;
  const auto choose = [&] { return feedback.choose([&](PlanPolicy) { return predicted(next_us++); }); };
  const ProgramPtr second = choose();
  EXPECT_EQ(second->plan().predicted_step_us, 110);
  feedback.note(second, evicting(148));
  EXPECT_EQ(feedback.note(second, evicting(148)), Next::kTryOthers);
  const ProgramPtr third = choose();
  EXPECT_EQ(third->plan().predicted_step_us, 111);
  feedback.note(third, step(120));
  EXPECT_EQ(feedback.note(third, step(120)), Next::kTryOthers);
  EXPECT_EQ(choose(), third); // it evicts nothing
}

TEST(Feedback, APlanThatDoesNotFitIsNotTried) {
  Feedback feedback(PlanPolicy::kHybrid);
  const ProgramPtr slow = predicted(100);
  ASSERT_EQ(note_evictions(feedback, slow, 150), Next::kTryOthers);
  const ProgramPtr unfit = predicted(50, /*fits=*/false);
  EXPECT_EQ(feedback.choose([&](PlanPolicy) { return unfit; }), slow);
}

} // namespace
} // namespace torchlms
