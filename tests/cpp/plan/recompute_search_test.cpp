// SPDX-License-Identifier: BSD-3-Clause
#include "plan/recompute_search.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "op_trace.h"
#include "plan/planner.h"
#include "random_trace.h"

namespace torchlms {
namespace {

Bytes highest(Workbench& bench, const Design& design) {
  return std::ranges::max(bench.held_on_demand(design));
}

TEST(RecomputeSearch, TakesTheMostBytesPerSecondFirst) {
  constexpr Bytes kSize = 100000;
  OpTrace ops;
  const StorageId x = ops.storage(kSize);
  const StorageId small = ops.storage(kSize);
  const StorageId large = ops.storage(2 * kSize);
  ops.op({}, {x}, {.is_replayable = false});
  ops.save(x).op({x}, {small});
  ops.save(small).op({x}, {large});
  ops.save(large).drop(small).drop(large).op({}, {}, {.workspace_bytes = 5 * kSize});
  ops.end_forward();
  for (const StorageId id : {large, small, x}) {
    ops.unpack(id).wait(10).free(id);
  }
  const Trace trace = ops.finish();
  const CostModel costs;
  Workbench bench(trace, costs);
  RecomputeSearch search(bench);
  Design design = bench.keep_everything();
  // Both would do: they take equally long.
  const Bytes level = highest(bench, design) - 1;
  search.extend(design, level);
  EXPECT_EQ(design.kinds[large], ActionKind::kRecompute);
  EXPECT_EQ(design.kinds[small], ActionKind::kKeep);
}

TEST(RecomputeSearch, FitsEveryLevelDownToTheFloorAndDropsWhatIsThenNotNeeded) {
  for (const Trace& trace : random_traces(some(30))) {
    const CostModel costs;
    Workbench bench(trace, costs);
    RecomputeSearch search(bench);
    const Bytes floor = floor_of(trace).bytes;
    const Bytes peak = trace.unlimited_peak_bytes();
    Design design = bench.keep_everything();
    for (int i = 4; i >= 0; --i) {
      const Bytes level = floor + (peak - floor) * i / 4;
      search.extend(design, level);
      EXPECT_LE(highest(bench, design), level);
      Design dropped = design;
      search.drop_redundant(dropped, level);
      EXPECT_LE(highest(bench, dropped), level);
      EXPECT_LE(
          std::ranges::count(dropped.kinds, ActionKind::kRecompute),
          std::ranges::count(design.kinds, ActionKind::kRecompute));
    }
  }
}

TEST(RecomputeSearch, KeepsEverythingWhereEverythingFits) {
  const Trace trace = layers(8, 100000);
  const CostModel costs;
  Workbench bench(trace, costs);
  RecomputeSearch search(bench);
  Design design = bench.keep_everything();
  for (const Region& region : bench.regions().all()) {
    design.kinds[region.storage] = ActionKind::kRecompute;
  }
  search.drop_redundant(design, trace.unlimited_peak_bytes());
  EXPECT_EQ(design.kinds, bench.keep_everything().kinds);
}

} // namespace
} // namespace torchlms
