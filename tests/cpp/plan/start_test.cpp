// SPDX-License-Identifier: BSD-3-Clause
#include "plan/start.h"

#include <random>

#include <gtest/gtest.h>

#include "op_trace.h"
#include "plan/planner.h"
#include "plan/validator.h"
#include "random_trace.h"

namespace torchlms {
namespace {

constexpr CostModel kCosts{1e7 * kUnit, 1e7 * kUnit, 1};

// Any storage swapped, recomputed, both or neither, whether it may be so or not.
Start random_start(const Trace& trace, std::mt19937& random) {
  Start start;
  for (size_t i = 0; i < trace.storages.size(); ++i) {
    if (random() % 3 == 0) {
      start.swapped.push_back(static_cast<StorageId>(i));
    }
    if (random() % 3 == 0) {
      start.recomputed.push_back(static_cast<StorageId>(i));
    }
  }
  return start;
}

TEST(Start, WhateverIsGivenThePlanIsValidAndNoSlower) {
  std::mt19937 random(1);
  int num_won = 0;
  for (const Trace& trace : random_traces(some(60))) {
    const Bytes floor = floor_of(trace).bytes;
    for (const int tenths : {0, 3, 7}) {
      PlanRequest request{floor + (trace.unlimited_peak_bytes() - floor) * tenths / 10, 0, PlanPolicy::kAuto};
      const Plan without = make_plan(trace, kCosts, request);
      request.starts = {random_start(trace, random), random_start(trace, random)};
      const Plan with = make_plan(trace, kCosts, request);
      ASSERT_EQ(validate(trace, with).value_or(""), "");
      EXPECT_TRUE(with.fits);
      EXPECT_LE(with.predicted_peak_bytes, request.budget_bytes);
      EXPECT_LE(with.predicted_step_us, without.predicted_step_us);
      EXPECT_GE(with.predicted_step_us, with.lower_bound_us);
      EXPECT_NE(without.start, "given");
      EXPECT_TRUE(with.start == "given" || with.to_json() == without.to_json());
      num_won += with.predicted_step_us < without.predicted_step_us ? 1 : 0;
    }
  }
  EXPECT_GT(num_won, 0);
}

TEST(Start, OnlyAutoTakesOneFromTheCaller) {
  const Trace trace = layers(12, 100000);
  for (const PlanPolicy policy : {PlanPolicy::kSwap, PlanPolicy::kRecompute, PlanPolicy::kHybrid}) {
    PlanRequest request{600000, 0, policy};
    const Plan without = make_plan(trace, CostModel(), request);
    request.starts = {{{1, 2, 3}, {4, 5, 6}}};
    EXPECT_EQ(make_plan(trace, CostModel(), request).to_json(), without.to_json());
  }
}

TEST(Start, WhatIsDemandedStaysSoInAGivenOne) {
  Trace trace = layers(12, 100000);
  trace.ops[5].demand = Demand::kRecompute;
  PlanRequest request{700000, 0, PlanPolicy::kAuto};
  request.starts = {{{5}, {}}};
  const Plan plan = make_plan(trace, CostModel{1e12, 1e12, 0}, request);
  EXPECT_EQ(plan.actions[5].kind, ActionKind::kRecompute);
}

TEST(Start, APlanSaysWhereItsSearchBegan) {
  const Trace trace = layers(16, 100000);
  const Bytes budget = trace.unlimited_peak_bytes() * 6 / 10;
  EXPECT_EQ(make_plan(trace, CostModel{1e12, 1e12, 0}, {budget, 0, PlanPolicy::kSwap}).start, "distance");
  EXPECT_EQ(make_plan(trace, CostModel{1e12, 1e12, 0}, {budget, 0, PlanPolicy::kHybrid}).start, "distance");
  EXPECT_NE(make_plan(trace, CostModel{1e3, 1e3, 0}, {budget, 0, PlanPolicy::kRecompute}).start, "");
  EXPECT_EQ(make_plan(trace, CostModel(), {trace.unlimited_peak_bytes(), 0, PlanPolicy::kAuto}).start, "");
}

} // namespace
} // namespace torchlms
