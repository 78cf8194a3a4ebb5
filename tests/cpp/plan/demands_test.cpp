// SPDX-License-Identifier: BSD-3-Clause
#include "plan/demands.h"

#include <algorithm>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "op_trace.h"
#include "plan/planner.h"
#include "plan/validator.h"
#include "random_trace.h"

namespace torchlms {
namespace {

void demand(Trace& trace, OpId op, Demand demand) {
  trace.ops[op].demand = demand;
  trace.ops[op].is_replayable &= demand != Demand::kSave && demand != Demand::kSwap;
}

std::vector<Trace> demanding_traces(int count) {
  std::vector<Trace> traces = random_traces(count);
  std::mt19937 random(1);
  for (Trace& trace : traces) {
    for (size_t i = 0; i < trace.ops.size(); ++i) {
      constexpr Demand kAll[] = {Demand::kSave, Demand::kRecompute, Demand::kSwap};
      if (random() % 3 == 0) {
        demand(trace, static_cast<OpId>(i), kAll[random() % 3]);
      }
    }
  }
  return traces;
}

TEST(Demands, TheLastOpThatWroteAStorageDecides) {
  OpTrace writer;
  const StorageId input = writer.root(4 * kUnit);
  const StorageId first = writer.storage(8 * kUnit);
  const OpId make = writer.op({input}, {first});
  const OpId change = writer.op({first}, {first});
  writer.save(first).drop(first);
  writer.op({input}, {writer.storage(8 * kUnit)});
  writer.end_forward().wait(10).unpack(first).free(first).wait(5).unpack(first);
  Trace trace = writer.finish();
  EXPECT_FALSE(makes_demands(trace));
  demand(trace, make, Demand::kSwap);
  demand(trace, change, Demand::kNone);
  EXPECT_TRUE(demands_of(trace, Regions(trace)).empty());
  demand(trace, change, Demand::kSwap);
  EXPECT_EQ(demands_of(trace, Regions(trace)).at(first), Demand::kSwap);
  EXPECT_TRUE(makes_demands(trace));
}

TEST(Demands, WhatCannotBeRebuiltIsUnmetAndPlannedFreely) {
  OpTrace writer;
  const StorageId input = writer.root(4 * kUnit);
  const StorageId random = writer.storage(8 * kUnit);
  const OpId op = writer.op({input}, {random}, {.is_replayable = false});
  writer.save(random).drop(random);
  writer.op({input}, {writer.storage(8 * kUnit)});
  writer.end_forward().wait(10).unpack(random).free(random).wait(5).unpack(random);
  Trace trace = writer.finish();
  demand(trace, op, Demand::kRecompute);
  EXPECT_TRUE(demands_of(trace, Regions(trace)).empty());
  EXPECT_EQ(num_unmet_demands(trace, Regions(trace)), 1);
  EXPECT_EQ(make_plan(trace, CostModel(), {0, 0, PlanPolicy::kAuto}).num_unmet_demands, 1);
}

TEST(Demands, AreMetAtEveryBudgetThatWorks) {
  const std::vector<Trace> traces = demanding_traces(some(45));
  size_t num_recomputed = 0;
  size_t num_swapped = 0;
  for (size_t i = 0; i < traces.size(); ++i) {
    const Trace& trace = traces[i];
    const Demands demands = demands_of(trace, Regions(trace));
    const Bytes floor = floor_of(trace).bytes;
    const Bytes range = std::max<Bytes>(0, trace.unlimited_peak_bytes() - floor);
    double previous_us = std::numeric_limits<double>::infinity();
    for (const Bytes budget : {Bytes{0}, floor, floor + range / 3, floor + range, floor + 2 * range}) {
      const CostModel costs{2e7 * kUnit, 3e7 * kUnit, 1};
      const Plan plan = make_plan(trace, costs, {budget, 0, PlanPolicy::kAuto});
      ASSERT_EQ(validate(trace, plan).value_or(""), "") << "trace " << i << ", budget " << budget;
      EXPECT_TRUE(plan.fits);
      EXPECT_LE(plan.predicted_peak_bytes, budget == 0 ? floor : budget);
      for (size_t id = 0; id < demands.size(); ++id) {
        const ActionKind kind = plan.actions[id].kind;
        EXPECT_TRUE(demands[id] != Demand::kRecompute || kind == ActionKind::kRecompute) << i << " " << id;
        num_recomputed += demands[id] == Demand::kRecompute ? 1 : 0;
        num_swapped += demands[id] == Demand::kSwap && kind == ActionKind::kSwap ? 1 : 0;
      }
      EXPECT_TRUE(budget == 0 || plan.predicted_step_us <= previous_us) << "trace " << i;
      previous_us = budget == 0 ? previous_us : plan.predicted_step_us;
    }
  }
  EXPECT_GT(num_recomputed, 10U);
  EXPECT_GT(num_swapped, 10U);
}

TEST(Demands, WhatMustBeSavedIsNeverRunAgain) {
  for (const Trace& trace : demanding_traces(some(30))) {
    const Plan plan = make_plan(trace, CostModel(), {0, 0, PlanPolicy::kAuto});
    const Regions regions(trace);
    for (size_t id = 0; id < plan.actions.size(); ++id) {
      if (plan.actions[id].kind == ActionKind::kRecompute) {
        for (const OpId op : regions.of(static_cast<StorageId>(id))->ops) {
          EXPECT_NE(trace.ops[op].demand, Demand::kSave);
          EXPECT_NE(trace.ops[op].demand, Demand::kSwap);
        }
      }
    }
  }
}

} // namespace
} // namespace torchlms
