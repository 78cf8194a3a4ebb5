// SPDX-License-Identifier: BSD-3-Clause
#include "plan/lower_bound.h"

#include <gtest/gtest.h>

#include "hand_trace.h"
#include "op_trace.h"

namespace torchlms {
namespace {

TEST(LowerBound, IsTheRecordedTimeWhereEverythingFits) {
  const Trace trace = three_layers();
  EXPECT_EQ(lower_bound_us(trace, CostModel{1, 1, 0}, trace.unlimited_peak_bytes()), trace.step_us());
}

TEST(LowerBound, CountsWhatTheLinkCannotHideAsWorkedOutOnPaper) {
  // 100 of 310 bytes must leave between the death of storage 0 and the next event, at the same time: 5 us.
  const Trace trace = three_layers();
  const double bound_us = lower_bound_us(trace, CostModel{2e7, 2e7, 0}, 210);
  EXPECT_LE(bound_us, 65);
  EXPECT_GE(bound_us, 64.9);
}

TEST(LowerBound, CountsTheCheapestReplaysWhereTheLinkIsSlow) {
  constexpr Bytes kSize = 100000;
  const Trace trace = layers(8, kSize);
  const Bytes budget = trace.unlimited_peak_bytes() - 3 * kSize;
  // Three replays of 10 us, whatever the rest does.
  const double bound_us = lower_bound_us(trace, CostModel{1, 1, 0}, budget);
  EXPECT_LE(bound_us, trace.step_us() + 30);
  EXPECT_GE(bound_us, trace.step_us() + 29);
}

TEST(LowerBound, IsLowerWithAFasterLink) {
  const Trace trace = layers(8, 100000);
  double previous_us = 1e300;
  for (const double bytes_per_s : {1e3, 1e9, 5e9, 1e10, 1e12}) {
    const double bound_us = lower_bound_us(trace, CostModel{bytes_per_s, bytes_per_s, 0}, 400000);
    EXPECT_LE(bound_us, previous_us);
    previous_us = bound_us;
  }
  EXPECT_NEAR(previous_us, trace.step_us(), 0.2);
}

} // namespace
} // namespace torchlms
