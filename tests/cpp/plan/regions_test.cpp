// SPDX-License-Identifier: BSD-3-Clause
#include "plan/regions.h"

#include <functional>

#include <gtest/gtest.h>

#include "op_trace.h"

namespace torchlms {
namespace {

using Ids = std::vector<int32_t>;
constexpr Bytes kBig = 100000;

// Weights w and v, and x, which autograd saves.
struct Layer {
  OpTrace trace;
  StorageId w = trace.root(kBig);
  StorageId v = trace.root(kBig);
  StorageId x = trace.storage(kBig);
  StorageId y = trace.storage(kBig);

  Layer() {
    trace.op({}, {x}, {.is_replayable = false});
    trace.save(x);
  }
  // Ends the step: what is saved is used from the last to the first.
  Regions regions(const Ids& saved) {
    trace.end_forward();
    for (auto id = saved.rbegin(); id != saved.rend(); ++id) {
      trace.unpack(*id).free(*id);
    }
    return Regions(trace.finish());
  }
};

TEST(Regions, AnOutputIsRebuiltFromWhatAutogradSavedAndFromParameters) {
  Layer layer;
  const OpId op = layer.trace.op({layer.x, layer.w}, {layer.y});
  layer.trace.save(layer.y).drop(layer.y);
  const Regions regions = layer.regions({layer.x, layer.y});
  ASSERT_EQ(regions.all().size(), 1u);
  const Region* const region = regions.of(layer.y);
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(region->storage, layer.y);
  EXPECT_EQ(region->ops, Ids{op});
  EXPECT_EQ(region->leaves, (Ids{layer.w, layer.x}));
  EXPECT_EQ(region->temporaries, Ids{});
  EXPECT_EQ(region->replay_us, 10);
  EXPECT_EQ(region->extra_bytes, kBig);
  EXPECT_EQ(regions.of(layer.x), nullptr);
  EXPECT_EQ(regions.of(layer.w), nullptr);
}

// y = f(x) after `change`, which may replace any of it.
bool is_rebuilt(const std::function<void(Layer&)>& make_y) {
  Layer layer;
  make_y(layer);
  layer.trace.save(layer.y).drop(layer.y);
  return layer.regions({layer.x, layer.y}).of(layer.y) != nullptr;
}

TEST(Regions, OnlyReplayableOpsOnBytesThatAreSeenRebuild) {
  EXPECT_TRUE(is_rebuilt([](Layer& layer) { layer.trace.op({layer.x}, {layer.y}); }));
  EXPECT_FALSE(
      is_rebuilt([](Layer& layer) { layer.trace.op({layer.x}, {layer.y}, {.is_replayable = false}); }));
  EXPECT_FALSE(is_rebuilt([](Layer& layer) {
    layer.trace.op({layer.x}, {layer.y});
    layer.trace.opaque(layer.y);
  }));
  EXPECT_FALSE(is_rebuilt([](Layer& layer) {
    layer.trace.op({layer.x}, {layer.y});
    layer.trace.opaque(layer.x);
  }));
}

TEST(Regions, ALeafThatIsWrittenLaterIsNoLeaf) {
  EXPECT_FALSE(is_rebuilt([](Layer& layer) {
    layer.trace.op({layer.x}, {layer.y});
    layer.trace.op({layer.x}, {layer.x});
  }));
  EXPECT_FALSE(is_rebuilt([](Layer& layer) {
    layer.trace.op({layer.w}, {layer.y});
    layer.trace.op({layer.x, layer.w}, {layer.w});
  }));
}

TEST(Regions, WhatIsChangedAfterItsLastSeenWriteIsNotRebuilt) {
  Layer layer;
  layer.trace.op({layer.x}, {layer.y});
  layer.trace.save(layer.y).drop(layer.y).end_forward();
  layer.trace.unpack(layer.y).free(layer.y).unpack(layer.x).free(layer.x);
  Trace trace = layer.trace.finish();
  EXPECT_NE(Regions(trace).of(layer.y), nullptr);
  trace.values.back().is_final = false;
  EXPECT_EQ(Regions(trace).of(layer.y), nullptr);
}

TEST(Regions, AnInPlaceOpBelongsToTheRegionOfTheStorageItWrites) {
  Layer layer;
  const OpId make = layer.trace.op({layer.x}, {layer.y});
  const OpId change = layer.trace.op({layer.y}, {layer.y});
  layer.trace.save(layer.y).drop(layer.y);
  const Regions regions = layer.regions({layer.x, layer.y});
  ASSERT_NE(regions.of(layer.y), nullptr);
  EXPECT_EQ(regions.of(layer.y)->ops, (Ids{make, change}));
  EXPECT_EQ(regions.of(layer.y)->extra_bytes, kBig);
}

TEST(Regions, AnInPlaceOpThatMayNotRunAgainSpoilsTheWholeGroup) {
  EXPECT_FALSE(is_rebuilt([](Layer& layer) {
    layer.trace.op({layer.x}, {layer.y});
    layer.trace.op({layer.y}, {layer.y}, {.is_replayable = false});
  }));
}

TEST(Regions, WhatNobodySavedIsMadeOnTheWayAndFreed) {
  Layer layer;
  const StorageId first = layer.trace.storage(3 * kBig);
  const StorageId second = layer.trace.storage(2 * kBig);
  const OpId a = layer.trace.op({layer.x, layer.w}, {first});
  const OpId b = layer.trace.op({first}, {second});
  layer.trace.drop(first);
  const OpId c = layer.trace.op({second}, {layer.y}, {.workspace_bytes = 7});
  layer.trace.drop(second).save(layer.y).drop(layer.y);
  const Regions regions = layer.regions({layer.x, layer.y});
  ASSERT_NE(regions.of(layer.y), nullptr);
  EXPECT_EQ(regions.of(layer.y)->ops, (Ids{a, b, c}));
  EXPECT_EQ(regions.of(layer.y)->temporaries, (Ids{first, second}));
  EXPECT_EQ(regions.of(layer.y)->replay_us, 30);
  EXPECT_EQ(regions.of(layer.y)->extra_bytes, 5 * kBig);
}

TEST(Regions, TheWorkspaceOfAnOpCounts) {
  Layer layer;
  layer.trace.op({layer.x}, {layer.y}, {.workspace_bytes = 300});
  layer.trace.save(layer.y).drop(layer.y);
  const Regions regions = layer.regions({layer.x, layer.y});
  EXPECT_EQ(regions.of(layer.y)->extra_bytes, kBig + 300);
}

TEST(Regions, RunningStatisticsAreWrittenInAScratchCopy) {
  Layer layer;
  layer.trace.op({layer.x, layer.v}, {layer.y, layer.v});
  layer.trace.save(layer.y).drop(layer.y);
  const Regions regions = layer.regions({layer.x, layer.y});
  ASSERT_NE(regions.of(layer.y), nullptr);
  EXPECT_EQ(regions.of(layer.y)->leaves, Ids{layer.x});
  EXPECT_EQ(regions.of(layer.y)->extra_bytes, 2 * kBig);
}

TEST(Regions, ASecondOutputThatIsSavedTooIsMadeAgainAndDropped) {
  Layer layer;
  const StorageId mask = layer.trace.storage(kBig);
  layer.trace.op({layer.x}, {layer.y, mask});
  layer.trace.save(layer.y).save(mask).drop(layer.y).drop(mask);
  const Regions regions = layer.regions({layer.x, layer.y, mask});
  ASSERT_NE(regions.of(layer.y), nullptr);
  ASSERT_NE(regions.of(mask), nullptr);
  EXPECT_EQ(regions.of(layer.y)->leaves, Ids{layer.x});
  EXPECT_EQ(regions.of(layer.y)->temporaries, Ids{});
  EXPECT_EQ(regions.of(layer.y)->extra_bytes, 2 * kBig);
}

TEST(Regions, AnOpThatWritesIntoWhatItDidNotReadIsNotReplayed) {
  EXPECT_FALSE(is_rebuilt([](Layer& layer) { layer.trace.op({layer.x}, {layer.y, layer.w}); }));
}

TEST(Regions, SmallArgumentsAreHeldByTheRecord) {
  for (const Bytes size : {Region::kSmallBytes, Region::kSmallBytes + 1}) {
    Layer layer;
    const StorageId mask = layer.trace.storage(size);
    layer.trace.op({}, {mask}, {.is_replayable = false});
    layer.trace.op({layer.x, mask}, {layer.y});
    layer.trace.drop(mask).save(layer.y).drop(layer.y);
    EXPECT_EQ(layer.regions({layer.x, layer.y}).of(layer.y) != nullptr, size == Region::kSmallBytes);
  }
}

TEST(Regions, SavedStoragesThatNobodyMovesAreLeavesToo) {
  Layer layer;
  const StorageId fixed = layer.trace.storage(kBig);
  layer.trace.op({}, {fixed}, {.is_replayable = false});
  layer.trace.save_in_place(fixed);
  layer.trace.op({fixed}, {layer.y});
  layer.trace.drop(fixed).save(layer.y).drop(layer.y);
  const Regions regions = layer.regions({layer.x, fixed, layer.y});
  ASSERT_NE(regions.of(layer.y), nullptr);
  EXPECT_EQ(regions.of(layer.y)->leaves, Ids{fixed});
}

TEST(Regions, WhatIsSavedOnlyAfterTheDropIsRebuiltOnTheWay) {
  Layer layer;
  const StorageId late = layer.trace.storage(kBig);
  layer.trace.op({layer.x}, {late});
  layer.trace.op({late}, {layer.y});
  layer.trace.save(layer.y).drop(layer.y).save(late).drop(late);
  const Regions regions = layer.regions({layer.x, layer.y, late});
  ASSERT_NE(regions.of(layer.y), nullptr);
  EXPECT_EQ(regions.of(layer.y)->temporaries, Ids{late});
  EXPECT_EQ(regions.of(layer.y)->leaves, Ids{layer.x});
}

TEST(Regions, WhatTheProgramHoldsOrDropsInBackwardIsNotRebuilt) {
  Layer held;
  held.trace.op({held.x}, {held.y});
  held.trace.save(held.y);
  EXPECT_EQ(held.regions({held.x, held.y}).of(held.y), nullptr);

  Layer late;
  late.trace.op({late.x}, {late.y});
  late.trace.save(late.y).end_forward().drop(late.y).unpack(late.y).free(late.y);
  EXPECT_EQ(Regions(late.trace.finish()).of(late.y), nullptr);

  Layer early;
  early.trace.op({early.x}, {early.y});
  early.trace.save(early.y).drop(early.y).unpack(early.y).end_forward().free(early.y);
  EXPECT_EQ(Regions(early.trace.finish()).of(early.y), nullptr);
}

TEST(Regions, NothingRunsAfterTheStorageIsThere) {
  EXPECT_FALSE(is_rebuilt([](Layer& layer) {
    const StorageId temporary = layer.trace.storage(kBig);
    layer.trace.op({layer.x}, {temporary});
    layer.trace.op({temporary}, {layer.y});
    layer.trace.op({temporary}, {temporary});
    layer.trace.drop(temporary);
  }));
}

TEST(Regions, ChainsOfMoreThan64OpsAreNotReplayed) {
  for (const size_t length : {Region::kMaxOps, Region::kMaxOps + 1}) {
    Layer layer;
    StorageId last = layer.x;
    for (size_t i = 0; i + 1 < length; ++i) {
      const StorageId next = layer.trace.storage(kBig);
      layer.trace.op({last}, {next});
      last = next;
    }
    layer.trace.op({last}, {layer.y});
    layer.trace.save(layer.y).drop(layer.y);
    EXPECT_EQ(layer.regions({layer.x, layer.y}).of(layer.y) != nullptr, length == Region::kMaxOps);
  }
}

} // namespace
} // namespace torchlms
