// SPDX-License-Identifier: BSD-3-Clause
#include "plan/flips.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "op_trace.h"

namespace torchlms {
namespace {

// Blocks that are made of one input each, and hold nothing of each other.
Trace blocks(int count, Bytes size) {
  OpTrace ops;
  const StorageId input = ops.root(size);
  std::vector<StorageId> ids;
  for (int i = 0; i < count; ++i) {
    ids.push_back(ops.storage(size));
    ops.op({input}, {ids[i]});
    ops.save(ids[i]).drop(ids[i]);
  }
  ops.op({input}, {ops.storage(size)});
  ops.end_forward();
  for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
    ops.unpack(*id).wait(10).free(*id);
  }
  return ops.finish();
}

// All swapped, over a link so slow that running again is cheaper.
Design all_swapped(Workbench& bench, Bytes level) {
  Design design = bench.keep_everything();
  for (const Candidate& candidate : bench.candidates(design)) {
    design.kinds[candidate.storage] = ActionKind::kSwap;
  }
  EXPECT_TRUE(bench.fit(design, level));
  design.score = bench.score(design, level);
  return design;
}

Bytes least(Workbench& bench) {
  Design design = bench.keep_everything();
  for (const Candidate& candidate : bench.candidates(design)) {
    design.kinds[candidate.storage] = ActionKind::kSwap;
  }
  const std::vector<Bytes> held = bench.held_on_demand(design);
  return *std::ranges::max_element(held) + 200000;
}

TEST(Flips, LayersThatAreAlikeAreTurnedAtOnce) {
  const Trace trace = blocks(16, 100000);
  const CostModel costs{1e6, 1e6, 10};
  Workbench bench(trace, costs);
  const Bytes level = least(bench);
  Design design = all_swapped(bench, level);
  const Score before = design.score;
  const auto count = [&design] { return std::ranges::count(design.kinds, ActionKind::kRecompute); };
  ASSERT_EQ(count(), 0);
  EXPECT_TRUE(flip_alike(bench, design, level, 3));
  EXPECT_GT(count(), 3); // more than three trials of one each could have turned
  EXPECT_LT(design.score, before);
}

TEST(Flips, NothingIsTakenOverThatIsNotFaster) {
  const Trace trace = blocks(8, 100000);
  const CostModel costs{1e15, 1e15, 0};
  Workbench bench(trace, costs);
  const Bytes level = least(bench);
  Design design = all_swapped(bench, level);
  const Design before = design;
  flip_alike(bench, design, level, 10);
  EXPECT_LE(design.score, before.score);
  EXPECT_EQ(std::ranges::count(design.kinds, ActionKind::kRecompute), 0);
}

} // namespace
} // namespace torchlms
