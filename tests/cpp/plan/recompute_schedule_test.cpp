// SPDX-License-Identifier: BSD-3-Clause
#include "plan/recompute_schedule.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "op_trace.h"
#include "plan/candidates.h"
#include "plan/replay_check.h"
#include "plan/simulator.h"
#include "plan/swap_schedule.h"
#include "plan/validator.h"
#include "random_trace.h"

namespace torchlms {
namespace {

constexpr Bytes kBig = 100000;

// c = h(b), b = g(a), a = f(x), all saved; each backward step takes 5 us.
//
//  event   0   1  2  3  4  5  6 dead a  7  8  9 dead b  10 ...
struct Chain {
  StorageId x = 0;
  StorageId a = 1;
  StorageId b = 2;
  StorageId c = 3;
  Trace trace;

  Chain() {
    OpTrace ops;
    ops.storage(2 * kBig);
    ops.storage(kBig);
    ops.storage(kBig);
    ops.storage(kBig);
    ops.op({}, {x}, {.is_replayable = false});
    ops.save(x).op({x}, {a});
    ops.save(a).drop(x).op({a}, {b});
    ops.save(b).drop(a).op({b}, {c});
    ops.save(c).drop(b).drop(c).end_forward();
    for (const StorageId id : {c, b, a, x}) {
      ops.unpack(id).wait(5).free(id);
    }
    trace = ops.finish();
  }
  EventId need(StorageId id) const {
    return trace.storages[id].first_unpack;
  }
};

TEST(RecomputeSchedule, NothingRecomputedShowsTheTraceAsItIs) {
  const Chain chain;
  const Regions regions(chain.trace);
  RecomputeSchedule schedule(chain.trace, regions);
  const Trace& shown = schedule.apply(Recomputed(4));
  EXPECT_EQ(held_when_kept(shown), held_when_kept(chain.trace));
  EXPECT_EQ(shown.step_us(), chain.trace.step_us());
  EXPECT_TRUE(schedule.rebuilds().empty());
}

TEST(RecomputeSchedule, WhatIsRecomputedIsAwayFromItsDropToItsNeedAndTakesTime) {
  const Chain chain;
  const Regions regions(chain.trace);
  RecomputeSchedule schedule(chain.trace, regions);
  const Trace& shown = schedule.apply({0, 0, 1, 0});
  const EventId dead = chain.trace.storages[chain.b].dead;
  const EventId need = chain.need(chain.b);
  const std::vector<Bytes> before = held_when_kept(chain.trace);
  const std::vector<Bytes> after = held_when_kept(shown);
  for (EventId i = 0; i < static_cast<EventId>(before.size()); ++i) {
    EXPECT_EQ(before[i] - after[i], i > dead && i <= need ? kBig : 0) << "event " << i;
    EXPECT_EQ(shown.events[i].time_us - chain.trace.events[i].time_us, i > need ? 10 : 0);
  }
  ASSERT_EQ(schedule.rebuilds().size(), 1u);
  EXPECT_EQ(schedule.rebuilds()[0].storage, chain.b);
  EXPECT_EQ(schedule.rebuilds()[0].event, need);
}

TEST(RecomputeSchedule, AChainIsRebuiltLeavesFirstWhereItsEndIsNeeded) {
  const Chain chain;
  const Regions regions(chain.trace);
  RecomputeSchedule schedule(chain.trace, regions);
  const Trace& shown = schedule.apply({0, 1, 1, 1});
  const auto rebuilds = schedule.rebuilds();
  ASSERT_EQ(rebuilds.size(), 3u);
  EXPECT_EQ(rebuilds[0].storage, chain.a);
  EXPECT_EQ(rebuilds[1].storage, chain.b);
  EXPECT_EQ(rebuilds[2].storage, chain.c);
  for (const auto& rebuild : rebuilds) {
    EXPECT_EQ(rebuild.event, chain.need(chain.c));
  }
  EXPECT_EQ(shown.step_us(), chain.trace.step_us() + 30);
  EXPECT_EQ(shown.storages[chain.x].first_unpack, chain.need(chain.c));
  // x and what was rebuilt.
  EXPECT_EQ(held_when_kept(shown)[chain.need(chain.c)], 2 * kBig);
  EXPECT_EQ(held_when_kept(shown)[chain.need(chain.c) + 1], 5 * kBig);
}

TEST(RecomputeSchedule, ALeafThatAutogradDropsEarlierIsHeldForTheReplay) {
  OpTrace ops;
  const StorageId x = ops.storage(kBig);
  const StorageId y = ops.storage(2 * kBig);
  ops.op({}, {x}, {.is_replayable = false});
  ops.save(x).op({x}, {y});
  ops.save(y).drop(x).drop(y).end_forward();
  ops.unpack(x).free(x).wait(5).unpack(y).wait(5).free(y);
  const Trace trace = ops.finish();
  const Regions regions(trace);
  RecomputeSchedule schedule(trace, regions);
  const Trace& shown = schedule.apply({0, 1});
  EXPECT_EQ(shown.storages[x].freed, trace.storages[y].first_unpack);
  const std::vector<Bytes> held = held_when_kept(shown);
  EXPECT_EQ(held[trace.storages[y].first_unpack], kBig);
  EXPECT_EQ(held[trace.storages[y].freed], 3 * kBig);
}

TEST(Regions, AgreeWithTheSlowAnswer) {
  size_t num_regions = 0;
  size_t num_with_temporaries = 0;
  for (const Trace& trace : random_traces(some(120))) {
    const Regions regions(trace);
    const ReplayChecker checker(trace);
    for (size_t i = 0; i < trace.storages.size(); ++i) {
      const auto id = static_cast<StorageId>(i);
      const Region* const region = regions.of(id);
      const ReplayCheck check = checker.check(id);
      ASSERT_EQ(region != nullptr, check.fault.empty()) << "storage " << i << ": " << check.fault;
      if (region != nullptr) {
        EXPECT_TRUE(std::ranges::equal(region->ops, check.ops));
        EXPECT_TRUE(std::ranges::equal(region->leaves, check.leaves));
        EXPECT_EQ(region->extra_bytes, check.extra_bytes);
        EXPECT_GE(region->extra_bytes, trace.storages[i].size_bytes);
        ++num_regions;
        num_with_temporaries += region->temporaries.empty() ? 0 : 1;
      }
    }
  }
  EXPECT_GT(num_regions, 50u);
  EXPECT_GT(num_with_temporaries, 10u);
}

// A random set of recomputes, and swaps of everything else on demand.
Plan random_plan(const Trace& trace, const Regions& regions, std::mt19937_64& random) {
  Recomputed recomputed(trace.storages.size());
  for (const Region& region : regions.all()) {
    recomputed[region.storage] = random() % 2;
  }
  RecomputeSchedule recompute(trace, regions);
  const Trace& shown = recompute.apply(recomputed);
  const SwapSchedule schedule(shown);
  Selection selected(schedule.candidates().size());
  const bool has_swaps = random() % 2;
  std::generate(selected.begin(), selected.end(), [&] { return has_swaps && random() % 2; });
  const std::vector<Bytes> held = schedule.held_on_demand(selected);
  const Bytes budget = *std::ranges::max_element(held) + static_cast<Bytes>(random() % 300) * kUnit;
  const auto swap_ins = schedule.swap_ins(selected, budget, PrefetchRule{4, false});
  Plan plan = schedule.plan(selected, swap_ins, budget, selected);
  for (size_t i = 0; i < recomputed.size(); ++i) {
    plan.actions[i].kind = recomputed[i] ? ActionKind::kRecompute : plan.actions[i].kind;
  }
  plan.signature = trace.signature();
  plan.budget_bytes = budget;
  return plan;
}

TEST(RecomputeSchedule, CountsTheBytesThatTheValidatorCounts) {
  std::mt19937_64 random(7);
  int num_tight = 0;
  for (const Trace& trace : random_traces(some(200))) {
    const Regions regions(trace);
    Plan plan = random_plan(trace, regions, random);
    const Timeline timeline = simulate(trace, plan, CostModel{1e6, 1e6, 1});
    plan.predicted_peak_bytes = timeline.peak_bytes;
    ASSERT_EQ(validate(trace, plan).value_or(""), "");
    EXPECT_LE(timeline.peak_bytes, plan.budget_bytes);
    plan.budget_bytes = timeline.peak_bytes - 1;
    plan.fits = false;
    EXPECT_EQ(validate(trace, plan).value_or(""), "");
    if (plan.swapped_bytes(trace) == 0) { // then no copy can end early
      plan.budget_bytes = timeline.peak_bytes;
      plan.fits = true;
      EXPECT_EQ(validate(trace, plan).value_or(""), "");
    }
    num_tight += plan.recomputed_bytes(trace) > 0 ? 1 : 0;
  }
  EXPECT_GT(num_tight, 20);
}

TEST(RecomputeSchedule, SaysInShortWhatTheShownTraceHolds) {
  std::mt19937_64 random(9);
  for (const Trace& trace : random_traces(some(100))) {
    const Regions regions(trace);
    RecomputeSchedule schedule(trace, regions);
    for (int i = 0; i < 5; ++i) {
      Recomputed recomputed(trace.storages.size());
      for (const Region& region : regions.all()) {
        recomputed[region.storage] = random() % 2;
      }
      schedule.choose(recomputed);
      const std::vector<Bytes> held = schedule.held();
      EXPECT_EQ(held, held_when_kept(schedule.shown()));
      EXPECT_EQ(held, schedule.held());
    }
  }
}

TEST(RecomputeSchedule, TimelinesSayWhenEachStorageIsRebuilt) {
  std::mt19937_64 random(8);
  for (const Trace& trace : random_traces(some(100))) {
    const Regions regions(trace);
    const Plan plan = random_plan(trace, regions, random);
    const Timeline timeline = simulate(trace, plan, CostModel{1e9, 1e9, 1});
    double recompute_us = 0;
    double end_us = 0;
    for (const Interval& interval : timeline.recompute) {
      EXPECT_EQ(plan.actions[interval.storage].kind, ActionKind::kRecompute);
      EXPECT_GE(interval.start_us, end_us);
      end_us = interval.end_us;
      recompute_us += regions.of(interval.storage)->replay_us;
    }
    EXPECT_EQ(
        static_cast<ptrdiff_t>(timeline.recompute.size()),
        std::ranges::count(plan.actions, ActionKind::kRecompute, &Action::kind));
    EXPECT_NEAR(timeline.recompute_us, recompute_us, 1e-6);
    EXPECT_NEAR(timeline.step_us, trace.step_us() + timeline.stall_us + recompute_us, 1e-6);
  }
}

} // namespace
} // namespace torchlms
