// SPDX-License-Identifier: BSD-3-Clause
#include "plan/validator.h"

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "hand_trace.h"

namespace torchlms {
namespace {

// Of three_layers(): storage 0 is away before events 6 to 11, which leaves 210 bytes at any time.
Plan valid_plan(const Trace& trace) {
  Plan plan;
  plan.signature = trace.signature();
  plan.budget_bytes = 210;
  plan.predicted_peak_bytes = 210;
  plan.actions.resize(3);
  plan.actions[0] = {ActionKind::kSwap, Tier::kDisk, 4, 5, 11};
  plan.swap_in_order = {0};
  return plan;
}

// What the validator says of the valid plan after `damage`.
std::string answer_to(const std::function<void(Plan&)>& damage, const Trace& trace = three_layers()) {
  Plan plan = valid_plan(trace);
  damage(plan);
  return validate(trace, plan).value_or("");
}

void expect_says(const std::string& text, const std::function<void(Plan&)>& damage) {
  const std::string answer = answer_to(damage);
  EXPECT_NE(answer.find(text), std::string::npos) << "expected: " << text << ", got: " << answer;
}

TEST(Validator, HasNothingToSayAboutAValidPlan) {
  EXPECT_EQ(answer_to([](Plan&) {}), "");
}

TEST(Validator, FindsAPlanForAnotherTrace) {
  expect_says("2 actions for 3 storages", [](Plan& plan) { plan.actions.pop_back(); });
  expect_says("another program", [](Plan& plan) { ++plan.signature; });
}

TEST(Validator, FindsASwapOfWhatMayNotBeMoved) {
  Trace trace = three_layers();
  trace.storages[0].is_managed = false;
  EXPECT_EQ(answer_to([](Plan&) {}, trace), "storage 0: is swapped but not managed");
  trace = three_layers();
  trace.storages[0].is_root = true;
  EXPECT_EQ(answer_to([](Plan&) {}, trace), "storage 0: is swapped but not managed");
  trace = three_layers();
  trace.storages[0].dead = kNone;
  EXPECT_EQ(answer_to([](Plan&) {}, trace), "storage 0: its swap-out is not where the program drops it");
}

TEST(Validator, FindsPositionsOutOfOrder) {
  expect_says("not where the program drops it", [](Plan& plan) { plan.actions[0].swap_out = 3; });
  expect_says("released before its swap-out", [](Plan& plan) { plan.actions[0].release = 3; });
  expect_says("after the step", [](Plan& plan) { plan.actions[0].release = 15; });
  expect_says("before its block was released", [](Plan& plan) { plan.actions[0].release = 12; });
  expect_says("after its first unpack", [](Plan& plan) { plan.actions[0].swap_in = 13; });
  expect_says("before its block was released", [](Plan& plan) { plan.actions[0].swap_in = kNone; });
  expect_says("inside the forward pass", [](Plan& plan) { plan.actions[0].swap_in = 7; });
}

TEST(Validator, KnowsWhereASwapInCanBeIssued) {
  expect_says("nothing can be issued", [](Plan& plan) { plan.actions[0].swap_in = 10; });
  EXPECT_EQ(answer_to([](Plan& plan) { plan.actions[0].swap_in = 12; }), ""); // on demand
  const auto with_the_end_of_forward = [](Plan& plan) {
    plan.actions[0].swap_in = 8;
    plan.budget_bytes = 310;
  };
  EXPECT_EQ(answer_to(with_the_end_of_forward), "");
}

TEST(Validator, FindsAKeptStorageWithSwapEvents) {
  expect_says("kept but has swap events", [](Plan& plan) { plan.actions[1].swap_in = 9; });
}

TEST(Validator, FindsAWrongSwapInOrder) {
  expect_says("not listed exactly once", [](Plan& plan) { plan.swap_in_order.clear(); });
  expect_says("not listed exactly once", [](Plan& plan) { plan.swap_in_order = {0, 0}; });
  expect_says("not listed exactly once", [](Plan& plan) { plan.swap_in_order = {1, 0}; });
  expect_says("does not exist", [](Plan& plan) { plan.swap_in_order = {3}; });
  expect_says("out of order", [](Plan& plan) {
    plan.actions[1] = {ActionKind::kSwap, Tier::kDisk, 7, 8, 9};
    plan.swap_in_order = {0, 1};
  });
}

TEST(Validator, CountsBytesAsIfCopiesTookUntilTheirRelease) {
  expect_says("310 bytes are held before event 6", [](Plan& plan) { plan.actions[0].release = 6; });
  expect_says("310 bytes are held before event 10", [](Plan& plan) { plan.actions[0].swap_in = 9; });
  expect_says("the budget is 209", [](Plan& plan) { plan.budget_bytes = 209; });
  expect_says("213 bytes are held", [](Plan& plan) { plan.base_delta_bytes = 3; });
}

TEST(Validator, FindsAPlanThatSaysTheWrongThingAboutItsBudget) {
  expect_says("does not fit", [](Plan& plan) { plan.fits = false; });
  expect_says("more than the plan can hold", [](Plan& plan) { plan.predicted_peak_bytes = 211; });
}

TEST(Validator, AStorageThatIsNeverUnpackedLeavesBeforeItIsFreedAndStaysAway) {
  HandTrace hand(0);
  const StorageId unused = hand.pack(100);
  hand.op("aten::op").dead(unused).op("aten::op").end_forward().free(unused);
  const Trace trace = hand.finish();
  Plan plan;
  plan.signature = trace.signature();
  plan.budget_bytes = 100;
  plan.actions = {{ActionKind::kSwap, Tier::kDisk, 2, 2, kNone}};
  EXPECT_EQ(validate(trace, plan), std::nullopt);
  plan.actions[0].release = 4;
  EXPECT_EQ(validate(trace, plan), "storage 0: is released after it was freed");
  plan.actions[0] = {ActionKind::kSwap, Tier::kDisk, 2, 2, 3};
  EXPECT_EQ(validate(trace, plan), "storage 0: is brought back for no unpack");
}

} // namespace
} // namespace torchlms
