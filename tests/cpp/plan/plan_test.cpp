// SPDX-License-Identifier: BSD-3-Clause
#include "plan/plan.h"

#include <gtest/gtest.h>

#include "hand_trace.h"

namespace torchlms {
namespace {

Plan plan_that_swaps_the_first_layer() {
  Plan plan;
  plan.policy = "swap";
  plan.signature = 0xff;
  plan.budget_bytes = 210;
  plan.actions.resize(3);
  plan.actions[0] = {ActionKind::kSwap, Tier::kHost, 4, 5, 11};
  plan.swap_in_order = {0};
  plan.predicted_peak_bytes = 210;
  plan.predicted_step_us = 65;
  plan.predicted_stall_us = 5;
  plan.floor_bytes = 210;
  plan.floor_op = "aten::second";
  return plan;
}

TEST(Plan, SwappedBytesCountSwapsOnly) {
  const Trace trace = three_layers();
  Plan plan;
  plan.actions.resize(3);
  EXPECT_EQ(plan.swapped_bytes(trace), 0);
  plan.actions[2].kind = ActionKind::kSwap;
  EXPECT_EQ(plan.swapped_bytes(trace), 100);
}

TEST(Plan, ASwapThatNeverComesBackStillMovesSomething) {
  Plan plan;
  plan.actions.resize(2);
  EXPECT_TRUE(plan.moves_nothing());
  plan.actions[1] = {ActionKind::kSwap, Tier::kDisk, 1, 1, kNone};
  EXPECT_FALSE(plan.moves_nothing());
}

TEST(Plan, RecomputedBytesCountRecomputesOnly) {
  const Trace trace = three_layers();
  Plan plan = plan_that_swaps_the_first_layer();
  EXPECT_EQ(plan.recomputed_bytes(trace), 0);
  plan.actions[1].kind = ActionKind::kRecompute;
  EXPECT_EQ(plan.recomputed_bytes(trace), 100);
  EXPECT_EQ(plan.swapped_bytes(trace), 100);
  plan.actions[0] = Action();
  EXPECT_FALSE(plan.moves_nothing());
}

TEST(Plan, TextAndJsonSayWhatIsRecomputed) {
  Plan plan = plan_that_swaps_the_first_layer();
  plan.actions[1].kind = ActionKind::kRecompute;
  EXPECT_NE(
      plan.to_text(three_layers()).find("storage 1  0.00 MiB  recompute  drop @7  used @11\n"),
      std::string::npos);
  EXPECT_NE(plan.to_json().find(R"({"kind":"recompute","tier":"disk","swap_out":-1,)"), std::string::npos);
}

TEST(Plan, TextHasALinePerStorageThatMayBeMoved) {
  const std::string text = plan_that_swaps_the_first_layer().to_text(three_layers());
  EXPECT_EQ(
      text,
      "policy swap, budget 0.00 MiB, smallest possible 0.00 MiB at aten::second\n"
      "peak 0.00 MiB, step 0.07 ms (at least 0.00 ms) of which 0.01 ms waiting and 0.00 ms recomputing, 0.00 MiB swapped, 0.00 MiB "
      "recomputed\n"
      "storage 0  0.00 MiB  swap to host  out @4  free by @5  in @11  used @13\n"
      "storage 1  0.00 MiB  keep\n"
      "storage 2  0.00 MiB  keep\n");
}

TEST(Plan, TextSaysWhenTheBudgetIsTooSmall) {
  Plan plan = plan_that_swaps_the_first_layer();
  plan.fits = false;
  EXPECT_NE(plan.to_text(three_layers()).find("(too small)"), std::string::npos);
}

TEST(Plan, JsonHasTheFormatFirstAndEveryField) {
  Plan plan = plan_that_swaps_the_first_layer();
  plan.actions.resize(2);
  EXPECT_EQ(
      plan.to_json(),
      R"({"format":"torchlms.plan","version":1,"policy":"swap","start":"","signature":"00000000000000ff",)"
      R"("budget_bytes":210,"base_delta_bytes":0,)"
      R"("actions":[{"kind":"swap","tier":"host","swap_out":4,"release":5,"swap_in":11},)"
      R"({"kind":"keep","tier":"disk","swap_out":-1,"release":-1,"swap_in":-1}],)"
      R"("swap_in_order":[0],"fits":true,"predicted_peak_bytes":210,"predicted_step_us":65,)"
      R"("predicted_stall_us":5,"predicted_recompute_us":0,"lower_bound_us":0,"floor_bytes":210,"floor_op":"aten::second"})");
}

} // namespace
} // namespace torchlms
