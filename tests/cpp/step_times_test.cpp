// SPDX-License-Identifier: BSD-3-Clause
#include "step_times.h"

#include <gtest/gtest.h>

#include <vector>

namespace torchlms {
namespace {

// Ops that take so long, one after the other.
Trace trace_of(const std::vector<double>& ops_us) {
  Trace trace;
  double now_us = 0;
  for (size_t i = 0; i < ops_us.size(); ++i) {
    now_us += ops_us[i];
    Op op;
    op.duration_us = ops_us[i];
    trace.ops.push_back(op);
    Event event;
    event.subject = static_cast<int32_t>(i);
    event.time_us = now_us;
    trace.events.push_back(event);
  }
  return trace;
}

std::vector<double> durations(const Trace& trace) {
  std::vector<double> all;
  for (const Op& op : trace.ops) {
    all.push_back(op.duration_us);
  }
  return all;
}

StepTimes noted(const std::vector<std::vector<double>>& steps) {
  StepTimes times;
  for (const std::vector<double>& ops_us : steps) {
    times.note(trace_of(ops_us));
  }
  return times;
}

TEST(StepTimes, AreThoseOfASingleStep) {
  Trace trace = trace_of({1, 1});
  EXPECT_TRUE(noted({{10, 30}}).apply(trace));
  EXPECT_EQ(durations(trace), (std::vector<double>{10, 30}));
  EXPECT_EQ(trace.events[0].time_us, 10);
  EXPECT_EQ(trace.events[1].time_us, 40);
}

TEST(StepTimes, LeaveOutWhatDelayedAnOpOnce) {
  Trace trace = trace_of({1, 1});
  EXPECT_TRUE(noted({{10, 30}, {500, 30}, {10, 30}}).apply(trace));
  EXPECT_EQ(durations(trace), (std::vector<double>{10, 30}));
  EXPECT_EQ(trace.step_us(), 40);
}

TEST(StepTimes, AddUpToTheMedianStepWhereEachIsDelayedAtAnotherOp) {
  Trace trace = trace_of({1, 1, 2});
  EXPECT_TRUE(noted({{110, 10, 20}, {10, 110, 20}, {10, 10, 120}}).apply(trace));
  EXPECT_DOUBLE_EQ(trace.step_us(), 140);
  EXPECT_DOUBLE_EQ(trace.ops[0].duration_us, 35);
  EXPECT_DOUBLE_EQ(trace.ops[2].duration_us, 70);
}

TEST(StepTimes, AreTheMeanOfTheMiddleTwoOfAnEvenNumber) {
  Trace trace = trace_of({1});
  EXPECT_TRUE(noted({{10}, {20}, {40}, {1000}}).apply(trace));
  EXPECT_DOUBLE_EQ(trace.step_us(), 30);
}

TEST(StepTimes, FollowALastingChange) {
  std::vector<std::vector<double>> steps(20, {10, 10});
  steps.resize(28, {50, 10});
  Trace trace = trace_of({1, 1});
  EXPECT_TRUE(noted(steps).apply(trace));
  EXPECT_EQ(durations(trace), (std::vector<double>{50, 10}));
}

TEST(StepTimes, SayNothingOfAnotherProgram) {
  Trace longer = trace_of({1, 2, 3});
  EXPECT_FALSE(StepTimes().apply(longer));
  const StepTimes times = noted({{10, 30}});
  EXPECT_FALSE(times.apply(longer));
  Trace other = trace_of({1, 2});
  other.events[1].kind = EventKind::kDead;
  EXPECT_FALSE(times.apply(other));
  EXPECT_EQ(durations(longer), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(longer.step_us(), 6);
}

TEST(StepTimes, ForgetTheStepsOfAnotherProgram) {
  Trace trace = trace_of({1, 1});
  EXPECT_TRUE(noted({{10, 30}, {1, 2, 3}, {20, 50}}).apply(trace));
  EXPECT_EQ(durations(trace), (std::vector<double>{20, 50}));
}

TEST(StepTimes, OfAnEmptyStepAreNone) {
  Trace trace;
  EXPECT_TRUE(noted({{}}).apply(trace));
  EXPECT_EQ(trace.step_us(), 0);
}

} // namespace
} // namespace torchlms
