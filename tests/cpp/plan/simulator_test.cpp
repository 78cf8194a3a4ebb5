// SPDX-License-Identifier: BSD-3-Clause
#include "plan/simulator.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "hand_trace.h"
#include "plan/planner.h"
#include "plan/step_timer.h"
#include "random_trace.h"

namespace torchlms {
namespace {

constexpr CostModel kTenBytesPerUs{1e7, 1e7, 0}; // 100 bytes: 10 us

Plan keep(const Trace& trace) {
  Plan plan;
  plan.actions.resize(trace.storages.size());
  return plan;
}

// The events of three_layers() are listed at its definition.
Plan swap_first_layer(EventId release, EventId swap_in) {
  Plan plan;
  plan.actions.resize(3);
  plan.actions[0] = {ActionKind::kSwap, Tier::kDisk, 4, release, swap_in};
  plan.swap_in_order = {0};
  return plan;
}

TEST(Simulator, APlanThatKeepsEverythingTakesTheRecordedTimeAndTheUnlimitedPeak) {
  for (const Trace& trace : random_traces(30)) {
    const Timeline timeline = simulate(trace, keep(trace), kTenBytesPerUs);
    EXPECT_EQ(timeline.peak_bytes, trace.unlimited_peak_bytes());
    EXPECT_EQ(timeline.step_us, trace.step_us());
    EXPECT_EQ(timeline.stall_us, 0);
    EXPECT_TRUE(timeline.out.empty() && timeline.in.empty());
  }
}

TEST(Simulator, ComputeWaitsAtTheReleaseOfALateCopy) {
  const Timeline timeline = simulate(three_layers(), swap_first_layer(5, 11), kTenBytesPerUs);
  ASSERT_EQ(timeline.out.size(), 1u);
  EXPECT_EQ(timeline.out[0].start_us, 20);
  EXPECT_EQ(timeline.out[0].end_us, 30);
  EXPECT_EQ(timeline.event_us[4], 20);
  EXPECT_EQ(timeline.event_us[5], 30);
  EXPECT_EQ(timeline.event_us[6], 40);
  // Back in time: issued at 50, there at 60, used at 60.
  EXPECT_EQ(timeline.in[0].start_us, 50);
  EXPECT_EQ(timeline.in[0].end_us, 60);
  EXPECT_EQ(timeline.stall_us, 10);
  EXPECT_EQ(timeline.step_us, 70);
  EXPECT_EQ(timeline.peak_bytes, 210);
}

TEST(Simulator, ALaterReleaseHidesTheCopyButHoldsTheBlock) {
  const Timeline timeline = simulate(three_layers(), swap_first_layer(7, 11), kTenBytesPerUs);
  EXPECT_EQ(timeline.stall_us, 0);
  EXPECT_EQ(timeline.held_bytes[6], 310);
  EXPECT_EQ(timeline.peak_event, 6);
  // The copy ended with event 6, before the release.
  EXPECT_EQ(timeline.held_bytes[7], 210);
}

TEST(Simulator, AnUnpackWaitsForASwapInThatWasIssuedTooLate) {
  const Timeline timeline = simulate(three_layers(), swap_first_layer(7, 12), kTenBytesPerUs);
  EXPECT_EQ(timeline.event_us[12], 50);
  EXPECT_EQ(timeline.event_us[13], 60);
  EXPECT_EQ(timeline.stall_us, 10);
}

TEST(Simulator, APrefetchTakesItsMemoryWhenItIsIssued) {
  const Timeline timeline = simulate(three_layers(), swap_first_layer(7, 8), CostModel{1e9, 1, 0});
  EXPECT_EQ(timeline.held_bytes[8], 210);
  EXPECT_EQ(timeline.held_bytes[9], 310);
}

TEST(Simulator, CopiesOfOneDirectionQueueAndLatencyCountsForEach) {
  const Trace trace = three_layers();
  Plan plan = swap_first_layer(8, 9);
  plan.actions[1] = {ActionKind::kSwap, Tier::kDisk, 7, 8, 9};
  plan.swap_in_order = {1, 0};
  const Timeline timeline = simulate(trace, plan, CostModel{1e7, 1e7, 5});
  ASSERT_EQ(timeline.out.size(), 2u);
  EXPECT_EQ(timeline.out[0].end_us, 35);
  EXPECT_EQ(timeline.out[1].start_us, 35);
  EXPECT_EQ(timeline.out[1].end_us, 50);
  // Event 8 waits 20 us for both; then storage 1 comes first.
  EXPECT_EQ(timeline.in[0].storage, 1);
  EXPECT_EQ(timeline.in[0].start_us, 50);
  EXPECT_EQ(timeline.in[1].start_us, 65);
  EXPECT_EQ(timeline.in[1].end_us, 80);
  EXPECT_EQ(timeline.event_us[11], 65);
  EXPECT_EQ(timeline.event_us[13], 80);
  EXPECT_EQ(timeline.stall_us, 30);
}

TEST(Simulator, AStorageThatIsNeverUnpackedIsFreedOnce) {
  HandTrace hand(0);
  const StorageId unused = hand.pack(100);
  hand.run(10).op("aten::op").dead(unused).run(10).op("aten::op").end_forward();
  hand.run(10).free(unused);
  const StorageId late = hand.pack(1);
  hand.free(late);
  const Trace trace = hand.finish();
  Plan plan = keep(trace);
  plan.actions[unused] = {ActionKind::kSwap, Tier::kDisk, 2, 2, kNone};
  const Timeline timeline = simulate(trace, plan, kTenBytesPerUs);
  EXPECT_EQ(timeline.held_bytes, (std::vector<Bytes>{0, 100, 100, 0, 0, 0, 1}));
  EXPECT_EQ(timeline.stall_us, 10);
}

TEST(Simulator, AnEmptyTraceTakesNoTime) {
  const Timeline timeline = simulate(Trace(), Plan(), kTenBytesPerUs);
  EXPECT_EQ(timeline.step_us, 0);
  EXPECT_EQ(timeline.peak_event, kNone);
}

// Bytes before `event`, counted from the intervals on the link alone.
Bytes held_from_intervals(const Trace& trace, const Plan& plan, const Timeline& timeline, EventId event) {
  Bytes held = trace.events[event].base_peak_bytes + plan.base_delta_bytes;
  for (size_t i = 0; i < trace.storages.size(); ++i) {
    const StorageRecord& storage = trace.storages[i];
    if (!storage.is_managed || event <= storage.first_pack ||
        (storage.freed != kNone && event > storage.freed)) {
      continue;
    }
    const auto out = std::ranges::find(timeline.out, static_cast<StorageId>(i), &Interval::storage);
    const bool has_left = out != timeline.out.end() && event > plan.actions[i].swap_out &&
        timeline.event_us[event - 1] >= out->end_us;
    const EventId swap_in = plan.actions[i].swap_in;
    const bool is_back = swap_in != kNone && event > swap_in;
    held += has_left && !is_back ? 0 : storage.size_bytes;
  }
  return held;
}

void expect_serial(const std::vector<Interval>& intervals) {
  for (size_t i = 1; i < intervals.size(); ++i) {
    EXPECT_GE(intervals[i].start_us, intervals[i - 1].end_us);
  }
}

TEST(Simulator, TimelinesAreInOrderAndAgreeWithASlowCount) {
  for (const Trace& trace : random_traces(90)) {
    const Floor floor = floor_of(trace);
    const CostModel costs{3e7 * kUnit, 4e7 * kUnit, 2};
    const Plan plan = make_plan(trace, costs, {floor.bytes + floor.bytes / 8, 0, PlanPolicy::kSwap});
    const Timeline timeline = simulate(trace, plan, costs);
    EXPECT_TRUE(std::ranges::is_sorted(timeline.event_us));
    expect_serial(timeline.out);
    expect_serial(timeline.in);
    for (const Interval& out : timeline.out) {
      EXPECT_GE(out.start_us, timeline.event_us[plan.actions[out.storage].swap_out - 1]);
      EXPECT_LE(out.end_us, timeline.event_us[plan.actions[out.storage].release]);
    }
    for (const Interval& in : timeline.in) {
      EXPECT_GE(in.start_us, timeline.event_us[plan.actions[in.storage].swap_in]);
      EXPECT_LE(in.end_us, timeline.event_us[trace.storages[in.storage].first_unpack]);
    }
    for (size_t i = 0; i < trace.events.size(); ++i) {
      const Bytes expected = held_from_intervals(trace, plan, timeline, static_cast<EventId>(i));
      ASSERT_EQ(timeline.held_bytes[i], expected) << "before event " << i;
    }
    EXPECT_EQ(timeline.peak_bytes, *std::ranges::max_element(timeline.held_bytes));
    EXPECT_EQ(timeline.step_us, timeline.event_us.back());
  }
}

TEST(Simulator, TheStepTimerSaysTheSame) {
  for (const Trace& trace : random_traces(some(60))) {
    StepTimer timer(trace.events.size(), trace.storages.size());
    const Floor floor = floor_of(trace);
    for (const double bytes_per_s : {3e6, 3e7, 3e8}) {
      const CostModel costs{bytes_per_s * kUnit, bytes_per_s * kUnit, 2};
      const PlanRequest request{floor.bytes + floor.bytes / 8, 0, PlanPolicy::kSwap};
      const Plan plan = make_plan(trace, costs, request);
      EXPECT_NEAR(timer.step_us(trace, plan, costs), plan.predicted_step_us, 1e-6);
    }
  }
}

} // namespace
} // namespace torchlms
