// SPDX-License-Identifier: BSD-3-Clause
#include "plan/segments.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "op_trace.h"

namespace torchlms {
namespace {

TEST(Segments, AreCutFromAllOfThePassDownToSingleLayers) {
  const Trace trace = layers(16, 100000);
  const CostModel costs;
  Workbench bench(trace, costs);
  const std::vector<Design> designs = cut_into_segments(bench);
  ptrdiff_t previous = -1;
  for (const Design& design : designs) {
    const auto count = std::ranges::count(design.kinds, ActionKind::kRecompute);
    EXPECT_GE(count, previous);
    EXPECT_EQ(std::ranges::count(design.kinds, ActionKind::kSwap), 0);
    EXPECT_EQ(design.kinds[0], ActionKind::kKeep); // cannot be rebuilt
    previous = count;
  }
  EXPECT_EQ(previous, 15);
}

TEST(Segments, KeepTheirBoundaries) {
  const Trace trace = layers(17, 100000);
  const CostModel costs;
  Workbench bench(trace, costs);
  const std::vector<Design> designs = cut_into_segments(bench);
  // 16 that can be rebuilt in 4 segments: 3 boundaries, and the last segment has none.
  EXPECT_TRUE(std::ranges::any_of(designs, [](const Design& design) {
    return std::ranges::count(design.kinds, ActionKind::kRecompute) == 13;
  }));
}

} // namespace
} // namespace torchlms
