// SPDX-License-Identifier: BSD-3-Clause
#include "plan/planner.h"

#include <algorithm>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "hand_trace.h"
#include "plan/simulator.h"
#include "plan/swap_schedule.h"
#include "plan/validator.h"
#include "random_trace.h"

namespace torchlms {
namespace {

// Budgets from the floor to where everything may be kept.
std::vector<Bytes> budgets_of(const Trace& trace, int count = 7) {
  const Bytes floor = floor_of(trace).bytes;
  const Bytes range = trace.unlimited_peak_bytes() - floor;
  std::vector<Bytes> budgets;
  for (int i = 0; i < count; ++i) {
    budgets.push_back(floor + range * i / (count - 1));
  }
  return budgets;
}

// A link that is too slow, about right or fast, in turn.
CostModel costs_for(size_t i) {
  const double bytes_per_s = (i % 3 == 0 ? 5e6 : i % 3 == 1 ? 2e7 : 1e8) * kUnit;
  return {bytes_per_s, bytes_per_s * 1.5, static_cast<double>(i % 2)};
}

TEST(Planner, EveryPlanIsValidAndKeepsItsBudget) {
  const std::vector<Trace> traces = random_traces(some(150));
  for (size_t i = 0; i < traces.size(); ++i) {
    for (const Bytes budget : budgets_of(traces[i])) {
      const Plan plan = make_plan(traces[i], costs_for(i), {budget, 0, PlanPolicy::kSwap});
      ASSERT_EQ(validate(traces[i], plan).value_or(""), "") << "trace " << i << ", budget " << budget;
      EXPECT_TRUE(plan.fits);
      EXPECT_LE(plan.predicted_peak_bytes, budget);
    }
  }
}

TEST(Planner, MoreBudgetIsNeverSlower) {
  const std::vector<Trace> traces = random_traces(some(36));
  for (size_t i = 0; i < traces.size(); ++i) {
    double previous_us = std::numeric_limits<double>::infinity();
    for (const Bytes budget : budgets_of(traces[i], 40)) {
      const double step_us =
          make_plan(traces[i], costs_for(i), {budget, 0, PlanPolicy::kSwap}).predicted_step_us;
      EXPECT_LE(step_us, previous_us) << "trace " << i << ", budget " << budget;
      previous_us = step_us;
    }
    EXPECT_EQ(previous_us, traces[i].step_us());
  }
}

TEST(Planner, TheFloorWorksAndOneByteLessDoesNot) {
  const std::vector<Trace> traces = random_traces(some(60));
  for (size_t i = 0; i < traces.size(); ++i) {
    const Bytes floor = floor_of(traces[i]).bytes;
    EXPECT_TRUE(make_plan(traces[i], costs_for(i), {floor, 0}).fits);
    const Plan too_small = make_plan(traces[i], costs_for(i), {floor - 1, 0});
    EXPECT_FALSE(too_small.fits);
    EXPECT_EQ(too_small.floor_bytes, floor);
    EXPECT_EQ(too_small.predicted_peak_bytes, floor);
    EXPECT_EQ(validate(traces[i], too_small).value_or(""), "");
  }
}

TEST(Planner, BudgetZeroMovesAllThatMayBeMovedWithinTheFloor) {
  const std::vector<Trace> traces = random_traces(some(60));
  for (size_t i = 0; i < traces.size(); ++i) {
    const Plan plan = make_plan(traces[i], costs_for(i), {0, 0});
    EXPECT_EQ(validate(traces[i], plan).value_or(""), "");
    EXPECT_TRUE(plan.fits);
    EXPECT_EQ(plan.budget_bytes, floor_of(traces[i]).bytes);
    EXPECT_EQ(plan.predicted_peak_bytes, plan.budget_bytes);
    for (const Candidate& candidate : swap_candidates(traces[i])) {
      EXPECT_EQ(plan.actions[candidate.storage].kind, ActionKind::kSwap);
    }
  }
}

TEST(Planner, MovesNothingWhenEverythingFits) {
  for (const Trace& trace : random_traces(some(20))) {
    const Bytes peak = trace.unlimited_peak_bytes();
    const Plan plan = make_plan(trace, costs_for(0), {peak, 0});
    EXPECT_TRUE(plan.moves_nothing());
    EXPECT_EQ(plan.predicted_peak_bytes, peak);
    if (peak > floor_of(trace).bytes) {
      EXPECT_FALSE(make_plan(trace, costs_for(0), {peak - 1, 0}).moves_nothing());
    }
  }
}

std::string lines_of_storages(const Plan& plan, const Trace& trace) {
  const std::string text = plan.to_text(trace);
  return text.substr(text.find('\n', text.find('\n') + 1));
}

TEST(Planner, AGrownBaseIsPlannedLikeASmallerBudget) {
  for (const Trace& trace : random_traces(some(20))) {
    const Bytes budget = budgets_of(trace)[3];
    const Plan plan = make_plan(trace, costs_for(1), {budget, 0, PlanPolicy::kSwap});
    const Plan grown = make_plan(trace, costs_for(1), {budget + 1000, 1000});
    EXPECT_EQ(lines_of_storages(grown, trace), lines_of_storages(plan, trace));
    EXPECT_EQ(grown.predicted_peak_bytes, plan.predicted_peak_bytes + 1000);
    EXPECT_EQ(grown.floor_bytes, plan.floor_bytes + 1000);
    EXPECT_EQ(grown.budget_bytes, budget + 1000);
    EXPECT_EQ(validate(trace, grown).value_or(""), "");
  }
}

TEST(Planner, EqualArgumentsGiveEqualPlans) {
  for (const Trace& trace : random_traces(some(10))) {
    const PlanRequest request{budgets_of(trace)[2], 0};
    EXPECT_EQ(
        make_plan(trace, costs_for(0), request).to_json(), make_plan(trace, costs_for(0), request).to_json());
  }
}

TEST(Planner, PredictsWhatTheSimulatorSays) {
  for (const Trace& trace : random_traces(some(10))) {
    const Plan plan = make_plan(trace, costs_for(0), {budgets_of(trace)[1], 0});
    const Timeline timeline = simulate(trace, plan, costs_for(0));
    EXPECT_EQ(plan.policy, "swap");
    EXPECT_EQ(plan.signature, trace.signature());
    EXPECT_EQ(plan.predicted_peak_bytes, timeline.peak_bytes);
    EXPECT_EQ(plan.predicted_step_us, timeline.step_us);
    EXPECT_EQ(plan.predicted_stall_us, timeline.stall_us);
  }
}

TEST(Planner, ThreeLayersAtTheirFloorSwapTheFirstAsWorkedOutOnPaper) {
  const Trace trace = three_layers();
  const Floor floor = floor_of(trace);
  EXPECT_EQ(floor.bytes, 210);
  EXPECT_EQ(floor.event, 3);
  // 100 bytes take 5 us: out from 20 to 25 while event 5 waits, in from 45 to 50, used at 55.
  const Plan plan = make_plan(trace, CostModel{2e7, 2e7, 0}, {210, 0});
  EXPECT_EQ(plan.floor_op, "aten::second");
  EXPECT_EQ(plan.predicted_step_us, 65);
  EXPECT_EQ(plan.predicted_stall_us, 5);
  EXPECT_EQ(plan.swapped_bytes(trace), 100);
  EXPECT_EQ(plan.swap_in_order, std::vector<StorageId>{0});
  EXPECT_EQ(plan.actions[0].swap_out, 4);
  EXPECT_EQ(plan.actions[0].release, 5);
  EXPECT_EQ(plan.actions[0].swap_in, 11);
}

TEST(Planner, NoPlanCanHelpOneStorageThatIsTooLarge) {
  HandTrace hand(10);
  const StorageId small = hand.pack(5);
  hand.run(10).op("aten::small").dead(small);
  const StorageId large = hand.pack(1000);
  hand.run(10).op("aten::large").dead(large).run(10).op("aten::last").end_forward();
  hand.unpack(large).free(large).unpack(small).free(small);
  const Trace trace = hand.finish();
  const Plan plan = make_plan(trace, CostModel(), {500, 0});
  EXPECT_FALSE(plan.fits);
  EXPECT_EQ(plan.floor_bytes, 1010);
  EXPECT_EQ(plan.floor_op, "aten::large");
}

// Three storages that die early, then one op at which `needed` bytes must be away.
Trace choice_between(Bytes first, Bytes second, Bytes third) {
  HandTrace hand(0);
  std::vector<StorageId> ids;
  for (const Bytes size : {first, second, third}) {
    ids.push_back(hand.pack(size));
    hand.run(10).op("aten::layer").dead(ids.back());
  }
  hand.run(1000).op("aten::long");
  const StorageId last = hand.pack(100);
  hand.run(1000).op("aten::last").end_forward().unpack(last).run(1000).free(last);
  for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
    hand.run(1000).unpack(*id).run(1000).free(*id);
  }
  return hand.finish();
}

TEST(Planner, MovesOneStorageThatFitsInsteadOfSeveralWithLongerDistances) {
  const Trace trace = choice_between(40, 40, 60);
  const Plan plan = make_plan(trace, CostModel{1e8, 1e8, 0}, {trace.unlimited_peak_bytes() - 55, 0});
  EXPECT_EQ(plan.predicted_stall_us, 0);
  EXPECT_EQ(plan.swap_in_order, std::vector<StorageId>{2});
}

TEST(Planner, MovesTheSmallestStorageThatFitsWhenTimeIsEqual) {
  const Trace trace = choice_between(90, 50, 70);
  const Plan plan = make_plan(trace, CostModel{1e8, 1e8, 0}, {trace.unlimited_peak_bytes() - 45, 0});
  EXPECT_EQ(plan.predicted_stall_us, 0);
  EXPECT_EQ(plan.swap_in_order, std::vector<StorageId>{1});
}

TEST(Planner, SwapsWhatIsNeverUnpackedWithoutBringingItBack) {
  HandTrace hand(0);
  const StorageId unused = hand.pack(100);
  hand.run(10).op("aten::first").dead(unused);
  const StorageId used = hand.pack(100);
  hand.run(100).op("aten::second").dead(used);
  const StorageId last = hand.pack(100);
  hand.run(100).op("aten::third").end_forward();
  hand.unpack(last).free(last).run(100).unpack(used).free(used).free(unused);
  const Trace trace = hand.finish();
  const Plan plan = make_plan(trace, CostModel{1e7, 1e7, 0}, {200, 0});
  EXPECT_EQ(plan.actions[unused].kind, ActionKind::kSwap);
  EXPECT_EQ(plan.actions[unused].swap_in, kNone);
  EXPECT_EQ(plan.actions[used].kind, ActionKind::kKeep);
  EXPECT_TRUE(plan.swap_in_order.empty());
  EXPECT_EQ(plan.predicted_stall_us, 0);
}

TEST(Planner, AnEmptyTraceHasAnEmptyPlan) {
  const Trace trace;
  EXPECT_EQ(floor_of(trace).event, kNone);
  for (const Bytes budget : {Bytes{0}, Bytes{100}}) {
    const Plan plan = make_plan(trace, CostModel(), {budget, 0, PlanPolicy::kSwap});
    EXPECT_TRUE(plan.fits && plan.moves_nothing());
    EXPECT_EQ(validate(trace, plan), std::nullopt);
  }
}

// The fastest of all sets of swaps, prefetched by a few rules.
double exhaustive_us(const Trace& trace, const CostModel& costs, Bytes budget) {
  const SwapSchedule schedule(trace);
  const size_t count = schedule.candidates().size();
  double best_us = std::numeric_limits<double>::infinity();
  for (unsigned set = 0; set < 1u << count; ++set) {
    Selection selected(count);
    for (size_t i = 0; i < count; ++i) {
      selected[i] = (set >> i) & 1;
    }
    if (std::ranges::max(schedule.held_on_demand(selected)) > budget) {
      continue;
    }
    for (const int num_unpacks : {1, 4, PrefetchRule::kNoLimit}) {
      const auto swap_ins = schedule.swap_ins(selected, budget, {num_unpacks, false});
      const Plan plan = schedule.plan(selected, swap_ins, budget, {});
      best_us = std::min(best_us, simulate(trace, plan, costs).step_us);
    }
  }
  return best_us;
}

TEST(Planner, IsOnAverageWithinTwoPercentOfTheBestSetOfSwaps) {
  const std::vector<Trace> traces = random_traces(45);
  double sum = 0;
  int count = 0;
  for (size_t i = 0; i < traces.size(); ++i) {
    const size_t num_candidates = swap_candidates(traces[i]).size();
    if (num_candidates < 3 || num_candidates > 9) {
      continue;
    }
    for (const Bytes budget : budgets_of(traces[i])) {
      const double best_us = exhaustive_us(traces[i], costs_for(i), budget);
      sum +=
          make_plan(traces[i], costs_for(i), {budget, 0, PlanPolicy::kSwap}).predicted_step_us / best_us - 1;
      ++count;
    }
  }
  EXPECT_GT(count, 40);
  EXPECT_LT(sum / count, 0.02);
}

TEST(Planner, NamesTheOpThatWasRunningBeforeAnEvent) {
  Trace trace = three_layers();
  EXPECT_EQ(name_of_event(trace, 0), "aten::first");
  EXPECT_EQ(name_of_event(trace, 2), "aten::second");
  EXPECT_EQ(name_of_event(trace, 6), "aten::third");
  EXPECT_EQ(name_of_event(trace, 8), "end of forward");
  EXPECT_EQ(name_of_event(trace, 9), "backward");
  trace.backward_peak_node = "ReluBackward0";
  EXPECT_EQ(name_of_event(trace, 9), "ReluBackward0");
  EXPECT_EQ(name_of_event(trace, kNone), "");
}

} // namespace
} // namespace torchlms
