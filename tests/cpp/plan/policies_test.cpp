// SPDX-License-Identifier: BSD-3-Clause
// What every policy promises.
#include <algorithm>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "op_trace.h"
#include "plan/candidates.h"
#include "plan/planner.h"
#include "plan/regions.h"
#include "plan/simulator.h"
#include "plan/validator.h"
#include "random_trace.h"

namespace torchlms {
namespace {

constexpr PlanPolicy kSingle[] = {PlanPolicy::kSwap, PlanPolicy::kRecompute, PlanPolicy::kHybrid};

// A link that is too slow, about right or fast, in turn.
CostModel costs_for(size_t i) {
  const double bytes_per_s = (i % 3 == 0 ? 5e6 : i % 3 == 1 ? 2e7 : 1e8) * kUnit;
  return {bytes_per_s, bytes_per_s * 1.5, static_cast<double>(i % 2)};
}

// Each trace is planned for many times: fewest where the sanitizer looks for what planning, which has one
// thread, cannot have.
int few(int count) {
#if defined(__SANITIZE_THREAD__)
  return std::max(3, count / 20);
#else
  return some(count);
#endif
}

// Budgets from the floor to where everything may be kept.
std::vector<Bytes> budgets_of(const Trace& trace, int count) {
  const Bytes floor = floor_of(trace).bytes;
  const Bytes range = trace.unlimited_peak_bytes() - floor;
  std::vector<Bytes> budgets;
  for (int i = 0; i < count; ++i) {
    budgets.push_back(floor + range * i / (count - 1));
  }
  return budgets;
}

class Policies : public testing::TestWithParam<PlanPolicy> {};

TEST_P(Policies, EveryPlanIsValidAndKeepsItsBudget) {
  const std::vector<Trace> traces = random_traces(few(60));
  Bytes recomputed = 0;
  for (size_t i = 0; i < traces.size(); ++i) {
    for (const Bytes budget : budgets_of(traces[i], 5)) {
      const Plan plan = make_plan(traces[i], costs_for(i), {budget, 0, GetParam()});
      ASSERT_EQ(validate(traces[i], plan).value_or(""), "") << "trace " << i << ", budget " << budget;
      EXPECT_TRUE(plan.fits);
      EXPECT_LE(plan.predicted_peak_bytes, budget);
      EXPECT_GE(plan.predicted_step_us, plan.lower_bound_us) << "trace " << i << ", budget " << budget;
      recomputed += plan.recomputed_bytes(traces[i]);
      for (const Action& action : plan.actions) {
        const bool is_seen = action.release < traces[i].forward_end || action.release == action.swap_out ||
            traces[i].events[action.release].kind == EventKind::kUnpack;
        EXPECT_TRUE(is_seen) << "a run cannot wait at event " << action.release;
      }
    }
  }
  EXPECT_EQ(recomputed > 0, GetParam() != PlanPolicy::kSwap);
}

TEST_P(Policies, MoreBudgetIsNeverSlower) {
  const std::vector<Trace> traces = random_traces(few(18));
  for (size_t i = 0; i < traces.size(); ++i) {
    double previous_us = std::numeric_limits<double>::infinity();
    double previous_bound_us = std::numeric_limits<double>::infinity();
    for (const Bytes budget : budgets_of(traces[i], 20)) {
      const Plan plan = make_plan(traces[i], costs_for(i), {budget, 0, GetParam()});
      EXPECT_LE(plan.predicted_step_us, previous_us) << "trace " << i << ", budget " << budget;
      EXPECT_LE(plan.lower_bound_us, previous_bound_us) << "trace " << i << ", budget " << budget;
      previous_us = plan.predicted_step_us;
      previous_bound_us = plan.lower_bound_us;
    }
    EXPECT_EQ(previous_us, traces[i].step_us());
  }
}

TEST_P(Policies, EqualArgumentsGiveEqualPlans) {
  for (const Trace& trace : random_traces(few(10))) {
    const PlanRequest request{budgets_of(trace, 7)[2], 0, GetParam()};
    EXPECT_EQ(
        make_plan(trace, costs_for(0), request).to_json(), make_plan(trace, costs_for(0), request).to_json());
  }
}

TEST_P(Policies, BudgetZeroKeepsNothingThatMayGo) {
  const std::vector<Trace> traces = random_traces(few(40));
  for (size_t i = 0; i < traces.size(); ++i) {
    const Plan plan = make_plan(traces[i], costs_for(i), {0, 0, GetParam()});
    EXPECT_EQ(validate(traces[i], plan).value_or(""), "");
    EXPECT_TRUE(plan.fits);
    EXPECT_LE(plan.predicted_peak_bytes, plan.budget_bytes);
    if (GetParam() != PlanPolicy::kRecompute) {
      EXPECT_EQ(plan.budget_bytes, floor_of(traces[i]).bytes);
    }
    const Regions regions(traces[i]);
    for (const Candidate& candidate : swap_candidates(traces[i])) {
      const ActionKind kind = plan.actions[candidate.storage].kind;
      EXPECT_NE(kind, ActionKind::kKeep);
      if (GetParam() == PlanPolicy::kRecompute) {
        EXPECT_EQ(kind == ActionKind::kRecompute, regions.of(candidate.storage) != nullptr);
      }
    }
  }
}

TEST_P(Policies, ABudgetBelowTheFloorDoesNotFit) {
  for (const Trace& trace : random_traces(few(15))) {
    const Bytes floor = floor_of(trace).bytes;
    const Plan plan = make_plan(trace, costs_for(1), {floor - 1, 0, GetParam()});
    EXPECT_FALSE(plan.fits);
    EXPECT_EQ(plan.floor_bytes, floor);
    EXPECT_EQ(validate(trace, plan).value_or(""), "");
  }
}

TEST_P(Policies, AGrownBaseIsPlannedLikeASmallerBudget) {
  for (const Trace& trace : random_traces(few(10))) {
    const Bytes budget = budgets_of(trace, 7)[3];
    const Plan plan = make_plan(trace, costs_for(1), {budget, 0, GetParam()});
    const Plan grown = make_plan(trace, costs_for(1), {budget + 1000, 1000, GetParam()});
    EXPECT_EQ(grown.predicted_step_us, plan.predicted_step_us);
    EXPECT_EQ(grown.predicted_peak_bytes, plan.predicted_peak_bytes + 1000);
    EXPECT_EQ(grown.lower_bound_us, plan.lower_bound_us);
    EXPECT_EQ(validate(trace, grown).value_or(""), "");
  }
}

TEST_P(Policies, ATraceOfHundredsOfStoragesIsPlannedToo) {
  const int num_ops = few(900);
  const Trace trace = random_trace({Shape::kResidual, num_ops, 1});
  ASSERT_GT(swap_candidates(trace).size(), static_cast<size_t>(num_ops) / 3);
  const Bytes budget = budgets_of(trace, 3)[1];
  const Plan plan = make_plan(trace, costs_for(0), {budget, 0, GetParam()});
  EXPECT_EQ(validate(trace, plan).value_or(""), "");
  EXPECT_GE(plan.predicted_step_us, plan.lower_bound_us);
}

std::string name_of(const testing::TestParamInfo<PlanPolicy>& info) {
  static constexpr const char* kNames[] = {"Auto", "Swap", "Recompute", "Hybrid"};
  return kNames[static_cast<size_t>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Policies,
    testing::Values(PlanPolicy::kAuto, PlanPolicy::kSwap, PlanPolicy::kRecompute, PlanPolicy::kHybrid),
    name_of);

TEST(PlanPolicy, AutoIsNoSlowerThanAnyOther) {
  const std::vector<Trace> traces = random_traces(few(30));
  for (size_t i = 0; i < traces.size(); ++i) {
    for (const Bytes budget : budgets_of(traces[i], 5)) {
      const double auto_us =
          make_plan(traces[i], costs_for(i), {budget, 0, PlanPolicy::kAuto}).predicted_step_us;
      for (const PlanPolicy policy : kSingle) {
        const Plan plan = make_plan(traces[i], costs_for(i), {budget, 0, policy});
        EXPECT_LE(auto_us, plan.predicted_step_us) << "trace " << i << ", " << plan.policy;
      }
    }
  }
}

TEST(PlanPolicy, ASlowLinkLeadsToRecomputesAndAFastOneToSwaps) {
  const Trace trace = layers(16, 100000);
  const PlanRequest request{trace.unlimited_peak_bytes() * 6 / 10, 0, PlanPolicy::kAuto};
  const Plan slow = make_plan(trace, CostModel{1e6, 1e6, 0}, request);
  EXPECT_EQ(slow.swapped_bytes(trace), 0);
  EXPECT_GT(slow.recomputed_bytes(trace), 0);
  const Plan fast = make_plan(trace, CostModel{1e12, 1e12, 0}, request);
  EXPECT_EQ(fast.recomputed_bytes(trace), 0);
  EXPECT_GT(fast.swapped_bytes(trace), 0);
}

TEST(PlanPolicy, RecomputeLeavesASlowLinkAloneWhereItCan) {
  const Trace trace = layers(16, 100000);
  for (const int tenths : {9, 8, 7, 6}) {
    const PlanRequest request{trace.unlimited_peak_bytes() * tenths / 10, 0, PlanPolicy::kRecompute};
    const Plan plan = make_plan(trace, CostModel{1e6, 1e6, 0}, request);
    EXPECT_TRUE(plan.fits);
    EXPECT_EQ(plan.swapped_bytes(trace), 0) << tenths;
  }
}

TEST(PlanPolicy, AChainAtASmallBudgetIsRebuiltInSegments) {
  // Of 16 layers, 16 alive at once; keeping every fourth needs about 4 + 4.
  const Trace trace = layers(16, 100000);
  const Plan plan = make_plan(trace, CostModel{1e3, 1e3, 0}, {9 * 100000, 0, PlanPolicy::kAuto});
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.swapped_bytes(trace), 0);
  EXPECT_LE(plan.predicted_recompute_us, 120);
}

} // namespace
} // namespace torchlms
