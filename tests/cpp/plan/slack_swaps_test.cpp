// SPDX-License-Identifier: BSD-3-Clause
#include "plan/slack_swaps.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "hand_trace.h"

namespace torchlms {
namespace {

// Two layers of 100 bytes that die at 10 and 20 us; the forward pass ends at 60 us, and backward uses them
// at 80 and 70 us.
Trace two_layers() {
  HandTrace hand(10);
  const StorageId a = hand.pack(100);
  hand.run(10).op("aten::first").dead(a);
  const StorageId b = hand.pack(100);
  hand.run(10).op("aten::second").dead(b).run(40).op("aten::last").end_forward();
  const StorageId end = hand.pack(1);
  hand.unpack(end).run(10).unpack(b).run(10).free(b).unpack(a).free(a).free(end);
  return hand.finish();
}

std::vector<ActionKind> kinds(double us_per_100_bytes) {
  const Trace trace = two_layers();
  const CostModel costs{1e8 / us_per_100_bytes, 1e8 / us_per_100_bytes, 0};
  Workbench bench(trace, costs);
  std::vector<ActionKind> kinds = slack_swaps(bench).kinds;
  kinds.resize(2);
  return kinds;
}

TEST(SlackSwaps, SwapWhatTheLinkMovesUnseen) {
  EXPECT_EQ(kinds(10), (std::vector{ActionKind::kSwap, ActionKind::kSwap}));
}

TEST(SlackSwaps, PreferTheLongestSlackWhereTheLinkHasNoTimeForAll) {
  // In again: 12 us each, from 60 us on; both are not there by 80 us.
  EXPECT_EQ(kinds(12), (std::vector{ActionKind::kSwap, ActionKind::kKeep}));
}

TEST(SlackSwaps, SwapNothingOverALinkThatIsTooSlow) {
  EXPECT_EQ(kinds(21), (std::vector{ActionKind::kKeep, ActionKind::kKeep}));
}

} // namespace
} // namespace torchlms
