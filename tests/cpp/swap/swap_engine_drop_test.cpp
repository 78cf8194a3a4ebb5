// SPDX-License-Identifier: BSD-3-Clause
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "swap/swap_engine_fixture.h"

namespace torchlms {
namespace {

using SwapEngineDropTest = SwapEngineTest;

TEST_F(SwapEngineDropTest, ADroppedStorageLeavesTheDeviceWithoutACopy) {
  const StorageStatePtr state = resident(1);
  EXPECT_TRUE(engine->drop(state));
  EXPECT_EQ(residency(state), Residency::kDropped);
  EXPECT_EQ(device.held_bytes(), 0);
  EXPECT_EQ(device.managed_bytes(), 0);
  EXPECT_EQ(engine->store().used_bytes(), 0);
  EXPECT_EQ(engine->stats().swapped_out_bytes, 0);
  EXPECT_TRUE(engine->was_dropped(state));
  EXPECT_FALSE(engine->was_swapped(state));
}

TEST_F(SwapEngineDropTest, ARestoredStorageIsAsAnyOther) {
  const StorageStatePtr state = resident(1);
  ASSERT_TRUE(engine->drop(state));
  engine->restore(state, allocate(2));
  EXPECT_EQ(device.managed_bytes(), kHeld);
  EXPECT_TRUE(comes_back(state, 2));
  EXPECT_TRUE(engine->swap_out(state));
  engine->wait_swapped_out(state);
  EXPECT_TRUE(comes_back(state, 2));
}

TEST_F(SwapEngineDropTest, AStorageThatSomebodyElseHoldsIsNotDropped) {
  c10::Storage storage = allocate(1);
  const StorageStatePtr state = adopt(storage);
  EXPECT_FALSE(engine->drop(state));
  EXPECT_EQ(residency(state), Residency::kDevice);
  storage = c10::Storage();
  EXPECT_TRUE(engine->drop(state));
}

TEST_F(SwapEngineDropTest, UnmanagedAndPinnedAndMovingStoragesAreNotDropped) {
  EXPECT_FALSE(engine->drop(adopt(allocate(1), /*is_managed=*/false)));
  const StorageStatePtr pinned = resident(2);
  engine->pin(pinned);
  EXPECT_FALSE(engine->drop(pinned));
  for (const Residency from : {Residency::kSwappingOut, Residency::kSwappedOut, Residency::kSwappingIn}) {
    std::optional<HeldLane> held;
    const StorageStatePtr state = in_state(from, held);
    EXPECT_FALSE(engine->drop(state));
  }
}

TEST_F(SwapEngineDropTest, NeitherPressureNorAPrefetchTouchesADroppedStorage) {
  const StorageStatePtr state = resident(1);
  ASSERT_TRUE(engine->drop(state));
  EXPECT_FALSE(engine->reclaim(kSize));
  engine->relieve(0);
  EXPECT_TRUE(engine->try_swap_in(state));
  EXPECT_FALSE(engine->swap_out(state));
  EXPECT_EQ(residency(state), Residency::kDropped);
  EXPECT_EQ(engine->link().stats(Direction::kIn).bytes, 0);
}

TEST_F(SwapEngineDropTest, BytesMadeForNobodyAreFreed) {
  const StorageStatePtr state = resident(1);
  ASSERT_TRUE(engine->drop(state));
  engine->discard(state);
  engine->restore(state, allocate(1));
  EXPECT_EQ(device.held_bytes(), 0);
  EXPECT_EQ(device.managed_bytes(), 0);
}

TEST_F(SwapEngineDropTest, BytesOfAnotherSizeAreRefused) {
  const StorageStatePtr state = resident(1);
  ASSERT_TRUE(engine->drop(state));
  EXPECT_THROW(
      engine->restore(
          state,
          c10::Storage(
              c10::Storage::use_byte_size_t(),
              16,
              device.allocator()->allocate(16),
              device.allocator(),
              true)),
      c10::Error);
}

} // namespace
} // namespace torchlms
