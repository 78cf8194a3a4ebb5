// SPDX-License-Identifier: BSD-3-Clause
#include "swap/swap_engine.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <latch>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "swap/swap_engine_fixture.h"

namespace torchlms {
namespace {

TEST_F(SwapEngineTest, AnAdoptedStorageStaysOnTheDeviceAndCountsAsManaged) {
  const auto states = residents(2);
  EXPECT_EQ(residency(states[0]), Residency::kDevice);
  EXPECT_EQ(device.managed_bytes(), 2 * kHeld);
  EXPECT_FALSE(engine->was_swapped(states[0]));
  EXPECT_LT(states[0]->order, states[1]->order);
  EXPECT_TRUE(comes_back(states[1], 1));
}

TEST_F(SwapEngineTest, ASwappedOutStorageLeavesTheDeviceAndComesBackWithItsBytes) {
  const StorageStatePtr state = swapped_out(1);
  EXPECT_EQ(device.held_bytes(), 0);
  EXPECT_EQ(device.managed_bytes(), 0);
  EXPECT_EQ(engine->store().used_bytes(), kOnDisk);
  EXPECT_TRUE(engine->was_swapped(state));
  EXPECT_TRUE(comes_back(state, 1));
  EXPECT_EQ(residency(state), Residency::kDevice);
  EXPECT_EQ(device.managed_bytes(), kHeld);
  EXPECT_EQ(engine->stats().swapped_out_bytes, kSize);
  EXPECT_EQ(engine->stats().swapped_in_bytes, kSize);
  EXPECT_EQ(engine->stats().num_evictions, 0);
}

TEST_F(SwapEngineTest, TheBlockStaysUntilItsCopyIsComplete) {
  std::optional<HeldLane> held;
  const StorageStatePtr state = in_state(Residency::kSwappingOut, held);
  EXPECT_EQ(residency(state), Residency::kSwappingOut);
  EXPECT_EQ(device.held_bytes(), kHeld);
  EXPECT_FALSE(engine->swap_out(state));
  held.reset();
  engine->wait_all_swapped_out();
  EXPECT_EQ(residency(state), Residency::kSwappedOut);
  EXPECT_EQ(device.held_bytes(), 0);
}

TEST_F(SwapEngineTest, AWaitForASwapOutLastsUntilTheBlockIsFree) {
  const StorageStatePtr state = resident(1);
  std::future<Bytes> held_after;
  device.on_free([&] {
    held_after = std::async(std::launch::async, [&] {
      engine->wait_swapped_out(state);
      return device.held_bytes();
    });
    held_after.wait_for(std::chrono::milliseconds(50)); // for a wait that is too short to show
  });
  ASSERT_TRUE(engine->swap_out(state));
  engine->wait_all_swapped_out();
  EXPECT_EQ(held_after.get(), 0);
  device.on_free(nullptr);
}

TEST_F(SwapEngineTest, AcquireCancelsACopyThatIsUnderWay) {
  std::optional<HeldLane> held;
  const StorageStatePtr state = in_state(Residency::kSwappingOut, held);
  {
    const c10::Storage storage = engine->acquire(state);
    EXPECT_EQ(residency(state), Residency::kDevice);
    EXPECT_TRUE(is_filled(storage, 1));
    EXPECT_FALSE(engine->swap_out(state)); // the old copy has not ended
    held.reset();
    EXPECT_TRUE(eventually([&] { return engine->store().used_bytes() == 0; }));
    fill(storage, 2);
  }
  EXPECT_FALSE(engine->was_swapped(state));
  EXPECT_TRUE(eventually([&] { return engine->swap_out(state); }));
  engine->wait_swapped_out(state);
  EXPECT_TRUE(comes_back(state, 2));
}

TEST_F(SwapEngineTest, ACopyWhoseLastChunkHasStartedIsNotCancelledButReadBack) {
  restart({.chunk_bytes = kOnDisk, .link_bytes_per_s = 10.0 * kSize}); // the only chunk takes a while
  const StorageStatePtr state = resident(1);
  ASSERT_TRUE(engine->swap_out(state));
  ASSERT_TRUE(eventually([&] { return engine->link().stats(Direction::kOut).busy_us > 0; }));
  EXPECT_TRUE(comes_back(state, 1));
  EXPECT_TRUE(engine->was_swapped(state));
  EXPECT_EQ(engine->stats().swapped_in_bytes, kSize);
}

TEST_F(SwapEngineTest, AcquireWaitsForAPrefetchAndTakesIt) {
  std::optional<HeldLane> held;
  const StorageStatePtr state = in_state(Residency::kSwappingIn, held);
  EXPECT_EQ(residency(state), Residency::kSwappingIn);
  EXPECT_EQ(device.held_bytes(), kHeld);
  auto came_back = std::async(std::launch::async, [&] { return comes_back(state, 1); });
  held.reset();
  EXPECT_TRUE(came_back.get());
  EXPECT_EQ(engine->stats().swapped_in_bytes, kSize);
}

TEST_F(SwapEngineTest, ManyMayAcquireTheSameStorage) {
  const StorageStatePtr state = swapped_out(1);
  std::vector<std::future<bool>> came_back;
  for (int i = 0; i < 4; ++i) {
    came_back.push_back(std::async(std::launch::async, [&] { return comes_back(state, 1); }));
  }
  for (std::future<bool>& each : came_back) {
    EXPECT_TRUE(each.get());
  }
  EXPECT_EQ(device.held_bytes(), kHeld);
  EXPECT_EQ(device.managed_bytes(), kHeld);
  EXPECT_EQ(engine->stats().swapped_in_bytes, kSize);
}

TEST_F(SwapEngineTest, AnAcquiredStorageHasNoCopyOnDiskAnyMore) {
  const StorageStatePtr state = swapped_out(1);
  prefetch(state);
  EXPECT_EQ(engine->store().used_bytes(), kOnDisk);
  fill(engine->acquire(state), 2);
  EXPECT_EQ(engine->store().used_bytes(), 0);
  EXPECT_TRUE(engine->reclaim(1));
  EXPECT_TRUE(comes_back(state, 2));
}

TEST_F(SwapEngineTest, APrefetchTakesNoMemoryFromOthers) {
  const StorageStatePtr state = swapped_out(1);
  const StorageStatePtr other = resident(2);
  allow(kHeld);
  EXPECT_FALSE(engine->try_swap_in(state));
  EXPECT_EQ(residency(state), Residency::kSwappedOut);
  EXPECT_EQ(residency(other), Residency::kDevice);
  EXPECT_EQ(device.managed_bytes(), kHeld);
  EXPECT_TRUE(engine->try_swap_in(other)); // nothing to do
}

TEST_F(SwapEngineTest, AnInterruptEndsAcquireAndLosesNothing) {
  std::optional<HeldLane> held;
  const StorageStatePtr state = in_state(Residency::kSwappingIn, held);
  const auto interrupt = [] { throw std::runtime_error("interrupted"); };
  EXPECT_THROW(engine->acquire(state, interrupt), std::runtime_error);
  EXPECT_EQ(residency(state), Residency::kSwappingIn);
  EXPECT_GT(engine->stall_us(), 0);
  held.reset();
  EXPECT_TRUE(comes_back(state, 1));
}

TEST_F(SwapEngineTest, AStorageThatSomebodyElseHoldsIsNeverMoved) {
  const c10::Storage elsewhere = allocate(1);
  const StorageStatePtr state = adopt(elsewhere);
  EXPECT_FALSE(engine->is_sole_owner(state));
  EXPECT_FALSE(engine->swap_out(state));
  EXPECT_FALSE(engine->reclaim(1));
  engine->relieve(0);
  engine->wait_all_swapped_out();
  EXPECT_EQ(residency(state), Residency::kDevice);
  EXPECT_EQ(engine->store().peak_bytes(), 0);
}

TEST_F(SwapEngineTest, AStorageMayMoveOnceNobodyElseHoldsIt) {
  const StorageStatePtr state = swapped_out(1);
  {
    const c10::Storage elsewhere = engine->acquire(state);
    EXPECT_FALSE(engine->reclaim(1));
  }
  EXPECT_TRUE(engine->is_sole_owner(state));
  EXPECT_TRUE(engine->reclaim(1));
  EXPECT_EQ(residency(state), Residency::kSwappedOut);
}

TEST_F(SwapEngineTest, APinnedStorageIsNeverMoved) {
  const StorageStatePtr state = swapped_out(1);
  prefetch(state);
  engine->pin(state);
  EXPECT_FALSE(engine->swap_out(state));
  EXPECT_FALSE(engine->reclaim(1));
  engine->relieve(0);
  EXPECT_EQ(residency(state), Residency::kDevice);
}

TEST_F(SwapEngineTest, AnUnmanagedStorageIsNeverMovedNorCounted) {
  const StorageStatePtr state = adopt(allocate(1), /*is_managed=*/false);
  EXPECT_EQ(device.managed_bytes(), 0);
  EXPECT_FALSE(engine->swap_out(state));
  EXPECT_FALSE(engine->reclaim(1));
  EXPECT_TRUE(comes_back(state, 1));
  engine->discard(state);
  EXPECT_EQ(device.held_bytes(), 0);
}

TEST_F(SwapEngineTest, AStorageThatWasResizedIsNeverMoved) {
  const StorageStatePtr state = resident(1);
  engine->acquire(state).set_nbytes(static_cast<size_t>(kSize / 2));
  EXPECT_FALSE(engine->swap_out(state));
  EXPECT_FALSE(engine->reclaim(1));
  EXPECT_EQ(residency(state), Residency::kDevice);
}

class DiscardTest : public SwapEngineTest, public ::testing::WithParamInterface<Residency> {};

TEST_P(DiscardTest, FreesTheBytesWhereverTheyAre) {
  std::optional<HeldLane> held;
  const StorageStatePtr state = in_state(GetParam(), held);
  ASSERT_EQ(residency(state), GetParam());
  auto waited = std::async(std::launch::async, [&] { engine->wait_swapped_out(state); });
  engine->discard(state);
  engine->discard(state);
  held.reset();
  waited.get();
  EXPECT_TRUE(eventually([&] { return device.held_bytes() + device.managed_bytes() == 0; }));
  EXPECT_TRUE(eventually([&] { return engine->store().used_bytes() == 0; }));
  engine->wait_swapped_out(state);
  EXPECT_FALSE(engine->swap_out(state));
  EXPECT_FALSE(engine->reclaim(1));
  EXPECT_TRUE(eventually([&] { return state.use_count() == 2; })); // the test's own
}

INSTANTIATE_TEST_SUITE_P(
    FromEachState,
    DiscardTest,
    ::testing::Values(
        Residency::kDevice, Residency::kSwappingOut, Residency::kSwappedOut, Residency::kSwappingIn));

TEST_F(SwapEngineTest, ACancelledCopyMayBeDiscarded) {
  std::optional<HeldLane> held;
  const StorageStatePtr state = in_state(Residency::kSwappingOut, held);
  const c10::Storage storage = engine->acquire(state);
  engine->discard(state);
  held.reset();
  EXPECT_TRUE(eventually([&] { return device.managed_bytes() == 0; }));
  EXPECT_TRUE(is_filled(storage, 1)); // whoever acquired it keeps it
}

TEST_F(SwapEngineTest, ReclaimEvictsWhatIsNeededLastAndNoMoreThanIsNeeded) {
  const auto states = residents(4);
  EXPECT_TRUE(engine->reclaim(1));
  EXPECT_EQ(residency(states[0]), Residency::kSwappedOut);
  EXPECT_EQ(device.held_bytes(), 3 * kHeld);
  EXPECT_TRUE(engine->reclaim(kHeld + 1));
  engine->wait_all_swapped_out();
  EXPECT_EQ(residency(states[1]), Residency::kSwappedOut);
  EXPECT_EQ(residency(states[2]), Residency::kSwappedOut);
  EXPECT_EQ(residency(states[3]), Residency::kDevice);
  EXPECT_EQ(engine->stats().num_evictions, 3);
}

TEST_F(SwapEngineTest, ReclaimSaysWhenNothingIsLeft) {
  EXPECT_FALSE(engine->reclaim(1));
  swapped_out(1);
  EXPECT_FALSE(engine->reclaim(1));
}

TEST_F(SwapEngineTest, APrefetchedStorageThatNobodyUsedIsEvictedWithoutACopy) {
  const StorageStatePtr state = swapped_out(1);
  prefetch(state);
  std::optional<HeldLane> held(std::in_place, engine->link(), Direction::kOut);
  EXPECT_TRUE(engine->reclaim(1));
  EXPECT_EQ(residency(state), Residency::kSwappedOut);
  EXPECT_EQ(device.held_bytes(), 0);
  EXPECT_EQ(engine->stats().num_evictions, 0);
  EXPECT_TRUE(comes_back(state, 1));
}

TEST_F(SwapEngineTest, AnAllocationBeyondTheBudgetEvictsAndSucceeds) {
  allow(2 * kHeld);
  const auto states = residents(4);
  EXPECT_LE(device.take_peaks().held, 2 * kHeld);
  for (int seed = 3; seed >= 0; --seed) {
    EXPECT_TRUE(comes_back(states[seed], seed));
  }
  EXPECT_LE(device.take_peaks().held, 2 * kHeld);
}

TEST_F(SwapEngineTest, AnAllocationTakesTheMemoryOfAPrefetchUnderWay) {
  restart({.link_bytes_per_s = 20.0 * kSize});
  const StorageStatePtr state = swapped_out(1);
  allow(kHeld);
  ASSERT_TRUE(engine->try_swap_in(state));
  EXPECT_NO_THROW(allocate(2));
  EXPECT_EQ(residency(state), Residency::kSwappedOut);
  EXPECT_TRUE(comes_back(state, 1));
}

TEST_F(SwapEngineTest, AnAllocationWaitsForTheMemoryOfADiscardedPrefetch) {
  restart({.link_bytes_per_s = 20.0 * kSize});
  const StorageStatePtr state = swapped_out(1);
  allow(kHeld);
  ASSERT_TRUE(engine->try_swap_in(state));
  ASSERT_TRUE(eventually([&] { return engine->link().stats(Direction::kIn).busy_us > 0; }));
  engine->discard(state);
  EXPECT_NO_THROW(allocate(2));
}

TEST_F(SwapEngineTest, ReclaimTakesNothingThatSomebodyWaitsFor) {
  std::optional<HeldLane> held;
  const StorageStatePtr state = in_state(Residency::kSwappingIn, held);
  const uint64_t num_allocations = device.next_serial();
  std::latch is_waiting(1);
  auto acquired = std::async(std::launch::async, [&] {
    return engine->acquire(state, [&, is_first = true]() mutable {
      is_waiting.count_down(std::exchange(is_first, false) ? 1 : 0);
    });
  });
  is_waiting.wait();
  auto reclaimed = std::async(std::launch::async, [&] {
    while (engine->reclaim(1)) {
    }
    return residency(state);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20)); // for a reclaim that takes it to show
  held.reset();
  const c10::Storage storage = acquired.get();
  EXPECT_TRUE(is_filled(storage, 1));
  EXPECT_EQ(reclaimed.get(), Residency::kDevice);
  EXPECT_EQ(device.next_serial(), num_allocations);
}

TEST_F(SwapEngineTest, RelieveStartsWithWhatIsNeededLastAndCountsWhatIsUnderWay) {
  const c10::Storage elsewhere = allocate(9);
  adopt(elsewhere);
  const auto states = residents(4);
  std::optional<HeldLane> held(std::in_place, engine->link(), Direction::kOut);
  engine->relieve(3 * kHeld);
  engine->relieve(3 * kHeld);
  EXPECT_EQ(residency(states[0]), Residency::kSwappingOut);
  EXPECT_EQ(residency(states[1]), Residency::kSwappingOut);
  EXPECT_EQ(residency(states[2]), Residency::kDevice);
  held.reset();
  engine->wait_all_swapped_out();
  EXPECT_EQ(device.held_bytes(), 3 * kHeld);
  EXPECT_EQ(engine->stats().num_evictions, 0);
}

TEST_F(SwapEngineTest, NoMoveShowsAPeakOfTheBaseThatIsNotThere) {
  const auto states = residents(2);
  device.take_peaks();
  EXPECT_TRUE(engine->swap_out(states[0]));
  engine->wait_all_swapped_out();
  device.refuse(1);
  EXPECT_FALSE(engine->try_swap_in(states[0]));
  prefetch(states[0]);
  EXPECT_TRUE(engine->reclaim(1));
  engine->store().fail_read_for_test(1, EIO);
  EXPECT_THROW(engine->acquire(states[0]), DiskError);
  device.refuse(1);
  EXPECT_THROW(engine->acquire(states[0]), c10::OutOfMemoryError);
  EXPECT_TRUE(comes_back(states[0], 0));
  engine->discard(states[0]);
  engine->store().fail_write_for_test(1, EIO);
  EXPECT_TRUE(engine->swap_out(states[1]));
  engine->wait_all_swapped_out();
  engine->discard(states[1]);
  EXPECT_EQ(device.take_peaks().base, 0);
}

TEST_F(SwapEngineTest, AfterAFailedWriteTheDeviceCopyIsIntactAndTheErrorIsKept) {
  for (const int nth_chunk : {1, 2, 3}) {
    const StorageStatePtr state = resident(nth_chunk);
    engine->store().fail_write_for_test(nth_chunk, EIO);
    EXPECT_TRUE(engine->swap_out(state));
    engine->wait_all_swapped_out();
    EXPECT_EQ(residency(state), Residency::kDevice);
    EXPECT_EQ(engine->store().used_bytes(), 0);
    EXPECT_FALSE(engine->was_swapped(state));
    EXPECT_TRUE(comes_back(state, nth_chunk));
    EXPECT_FALSE(engine->swap_out(state)); // not before the error was seen
    EXPECT_NE(engine->error(), nullptr);
    EXPECT_EQ(code_of_error(), EIO);
    EXPECT_EQ(code_of_error(), 0);
    EXPECT_TRUE(engine->swap_out(state));
    engine->wait_swapped_out(state);
    EXPECT_TRUE(comes_back(state, nth_chunk));
  }
}

TEST_F(SwapEngineTest, AfterAFailedWriteAnAllocationIsOutOfMemoryUntilTheErrorWasSeen) {
  allow(kHeld);
  const StorageStatePtr state = resident(1);
  engine->store().fail_write_for_test(1, ENOSPC);
  EXPECT_THROW(allocate(2), c10::OutOfMemoryError);
  EXPECT_EQ(residency(state), Residency::kDevice);
  EXPECT_EQ(code_of_error(), ENOSPC);
  EXPECT_NO_THROW(allocate(2));
  EXPECT_TRUE(comes_back(state, 1));
}

TEST_F(SwapEngineTest, AFullDiskIsAWriteErrorAndNothingMoves) {
  restart({.disk_bytes = kOnDisk});
  const StorageStatePtr first = swapped_out(1);
  const StorageStatePtr second = resident(2);
  EXPECT_FALSE(engine->swap_out(second));
  EXPECT_EQ(residency(second), Residency::kDevice);
  EXPECT_EQ(code_of_error(), ENOSPC);
  engine->discard(first);
  EXPECT_TRUE(engine->swap_out(second));
  EXPECT_TRUE(comes_back(second, 2));
}

TEST_F(SwapEngineTest, AFailedReadIsThrownOnceAndTheBytesStayOnDisk) {
  const StorageStatePtr state = swapped_out(1);
  for (const int nth_chunk : {1, 2, 3}) {
    engine->store().fail_read_for_test(nth_chunk, EIO);
    EXPECT_THROW(engine->acquire(state), DiskError);
    EXPECT_EQ(residency(state), Residency::kSwappedOut);
    EXPECT_EQ(device.held_bytes(), 0);
  }
  EXPECT_EQ(engine->error(), nullptr); // write errors only
  EXPECT_TRUE(comes_back(state, 1));
}

TEST_F(SwapEngineTest, AFailedPrefetchIsThrownByAcquire) {
  const StorageStatePtr state = swapped_out(1);
  engine->store().fail_read_for_test(1, EIO);
  prefetch(state);
  EXPECT_EQ(residency(state), Residency::kSwappedOut);
  EXPECT_EQ(device.held_bytes(), 0);
  EXPECT_THROW(engine->acquire(state), DiskError);
  EXPECT_TRUE(comes_back(state, 1));
}

TEST_F(SwapEngineTest, AFailedReadIsForgottenOnceAnotherHasSucceeded) {
  const StorageStatePtr state = swapped_out(1);
  engine->store().fail_read_for_test(1, EIO);
  prefetch(state);
  prefetch(state);
  EXPECT_EQ(residency(state), Residency::kDevice);
  EXPECT_TRUE(engine->reclaim(1));
  EXPECT_TRUE(comes_back(state, 1));
}

TEST_F(SwapEngineTest, OutOfMemoryInAcquireLosesNothing) {
  const StorageStatePtr state = swapped_out(1);
  device.refuse(1);
  EXPECT_THROW(engine->acquire(state), c10::OutOfMemoryError);
  EXPECT_EQ(residency(state), Residency::kSwappedOut);
  EXPECT_EQ(device.managed_bytes(), 0);
  EXPECT_TRUE(comes_back(state, 1));
}

} // namespace
} // namespace torchlms
