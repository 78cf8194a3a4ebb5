// SPDX-License-Identifier: BSD-3-Clause
#include "plan/validator.h"

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "hand_trace.h"
#include "op_trace.h"

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

constexpr Bytes kBig = 100000;

// x and then y = f(x) are saved and dropped; z is saved last.
//
//  event   0      1       2    3       4       5    6       7    8         | 9         10      11 .. 14
//          op x   pack x  op y pack y  dead y  op   pack z  op z dead x, z | unpack z  free z  y, then x
struct Chain {
  StorageId x = 0;
  StorageId y = 1;
  StorageId z = 2;
  Trace trace;

  Chain() {
    OpTrace ops;
    for (int i = 0; i < 3; ++i) {
      ops.storage(kBig);
    }
    ops.op({}, {x}, {.is_replayable = false});
    ops.save(x).op({x}, {y});
    ops.save(y).drop(y).op({}, {});
    ops.save(z).op({}, {z});
    ops.drop(x).drop(z).end_forward();
    ops.unpack(z).free(z).unpack(y).free(y).unpack(x).free(x);
    trace = ops.finish();
  }
  Plan plan() const {
    Plan plan;
    plan.signature = trace.signature();
    plan.actions.resize(3);
    plan.actions[y].kind = ActionKind::kRecompute;
    plan.budget_bytes = 2 * kBig;
    return plan;
  }
};

TEST(Validator, HasNothingToSayAboutAValidRecompute) {
  const Chain chain;
  EXPECT_EQ(validate(chain.trace, chain.plan()).value_or(""), "");
  Plan too_small = chain.plan();
  --too_small.budget_bytes;
  EXPECT_NE(validate(chain.trace, too_small).value_or("").find("200000 bytes are held"), std::string::npos);
}

TEST(Validator, FindsARecomputeOfWhatCannotBeRebuilt) {
  const Chain chain;
  const auto answer = [&chain](StorageId id, Trace trace) {
    Plan plan = chain.plan();
    plan.actions[chain.y] = Action();
    plan.actions[id].kind = ActionKind::kRecompute;
    return validate(trace, plan).value_or("");
  };
  EXPECT_EQ(answer(chain.x, chain.trace), "storage 0: is recomputed, but op 0 may not run again");
  Trace trace = chain.trace;
  trace.storages[chain.y].is_opaque = true;
  EXPECT_EQ(answer(chain.y, trace), "storage 1: is recomputed, but storage 1 is not written by ops alone");
  trace = chain.trace;
  trace.storages[chain.x].is_opaque = true;
  EXPECT_EQ(answer(chain.y, trace), "storage 1: is recomputed, but storage 0 is not written by ops alone");
  trace = chain.trace;
  trace.storages[chain.y].dead = kNone;
  EXPECT_EQ(
      answer(chain.y, trace),
      "storage 1: is recomputed, but autograd alone never holds it in the forward pass");
  trace = chain.trace;
  trace.storages[chain.y].first_unpack = kNone;
  EXPECT_EQ(answer(chain.y, trace), "storage 1: is recomputed, but backward does not ask for it in time");
}

TEST(Validator, FindsARecomputeWithSwapEvents) {
  const Chain chain;
  Plan plan = chain.plan();
  plan.actions[chain.y].swap_in = 9;
  EXPECT_EQ(validate(chain.trace, plan), "storage 1: is recomputed but has swap events");
}

TEST(Validator, ALeafMustBeBackWhereTheReplayNeedsIt) {
  const Chain chain;
  Plan plan = chain.plan();
  const EventId need = chain.trace.storages[chain.y].first_unpack;
  const EventId dead = chain.trace.storages[chain.x].dead;
  plan.swap_in_order = {chain.x};
  plan.actions[chain.x] = {ActionKind::kSwap, Tier::kDisk, dead, dead, need - 1};
  EXPECT_EQ(validate(chain.trace, plan).value_or(""), "");
  plan.actions[chain.x].swap_in = need;
  EXPECT_EQ(validate(chain.trace, plan), "storage 0: is brought back after its first unpack");
}

} // namespace
} // namespace torchlms
