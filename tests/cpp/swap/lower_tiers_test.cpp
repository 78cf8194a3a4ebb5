// SPDX-License-Identifier: BSD-3-Clause
#include "swap/lower_tiers.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "swap/own_memory_device.h"
#include "swap/swap_engine_fixture.h"

// Engines on a device with memory of its own: host memory first, then the disk.
namespace torchlms {
namespace {

constexpr Bytes kHost = 12'288; // what a copy takes in the host tier

class LowerTiersTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const StorageStatePtr& state : states_) {
      engine->discard(state);
    }
    engine.reset();
  }
  void start(Bytes host_bytes, bool has_disk = true) {
    auto disk = has_disk ? std::make_unique<DiskStore>(::testing::TempDir(), Bytes{1} << 24) : nullptr;
    const Link::Options link{4096, /*credits=*/1, 0, kNoAgeing};
    engine = std::make_unique<SwapEngine>(
        device, std::move(disk), link, LowerTiers::HostOptions{host_bytes, /*pins=*/true});
  }
  StorageStatePtr resident(int seed) {
    c10::Storage storage(
        c10::Storage::use_byte_size_t(),
        static_cast<size_t>(kSize),
        device.allocate(kSize),
        device.allocator(),
        /*resizable=*/true);
    fill(storage, seed);
    states_.push_back(engine->adopt(std::move(storage), kHeld, /*is_managed=*/true));
    return states_.back();
  }
  bool leaves(const StorageStatePtr& state) {
    const bool started = engine->swap_out(state);
    engine->wait_swapped_out(state);
    return started;
  }

  OwnMemoryDevice device;
  std::unique_ptr<SwapEngine> engine;

 private:
  std::vector<StorageStatePtr> states_;
};

TEST_F(LowerTiersTest, TheHostTierIsFilledBeforeTheDisk) {
  start(2 * kHost);
  for (int seed = 0; seed < 3; ++seed) {
    EXPECT_TRUE(leaves(resident(seed)));
  }
  EXPECT_EQ(engine->tiers().host().used_bytes(), 2 * kHost);
  EXPECT_EQ(engine->store().used_bytes(), kOnDisk);
  EXPECT_EQ(engine->stats().swapped_out_bytes, 3 * kSize);
  EXPECT_EQ(engine->stats().written_to_disk_bytes, kSize);
}

TEST_F(LowerTiersTest, BytesComeBackFromEitherTier) {
  start(kHost);
  const StorageStatePtr from_host = resident(1);
  const StorageStatePtr from_disk = resident(2);
  EXPECT_TRUE(leaves(from_host) && leaves(from_disk));
  EXPECT_TRUE(is_filled(engine->acquire(from_host), 1));
  EXPECT_TRUE(is_filled(engine->acquire(from_disk), 2));
}

TEST_F(LowerTiersTest, WithoutADiskAFullHostTierKeepsTheRestOnTheDevice) {
  start(kHost, /*has_disk=*/false);
  EXPECT_TRUE(leaves(resident(1)));
  const StorageStatePtr stays = resident(2);
  EXPECT_FALSE(leaves(stays));
  EXPECT_EQ(engine->residency(stays), Residency::kDevice);
  EXPECT_EQ(engine->error(), nullptr);
}

TEST_F(LowerTiersTest, ACopyWaitsForTheWorkThatMakesItsBytes) {
  start(kHost);
  const StorageStatePtr state = resident(1);
  device.hold_work();
  EXPECT_TRUE(engine->swap_out(state));
  EXPECT_EQ(device.num_copies(), 0); // and the device itself checks each copy
  device.finish_work();
  engine->wait_swapped_out(state);
  EXPECT_EQ(engine->residency(state), Residency::kSwappedOut);
}

TEST_F(LowerTiersTest, ASwapInWaitsForTheWorkThatStillUsesItsBlock) {
  start(kHost);
  const StorageStatePtr state = resident(1);
  EXPECT_TRUE(leaves(state));
  device.hold_work();
  EXPECT_TRUE(engine->try_swap_in(state));
  EXPECT_EQ(engine->residency(state), Residency::kSwappingIn);
  device.finish_work();
  EXPECT_TRUE(is_filled(engine->acquire(state), 1));
}

TEST_F(LowerTiersTest, TimeSpentWaitingForTheDeviceIsNoTimeOfTheLink) {
  start(kHost);
  const StorageStatePtr state = resident(1);
  device.hold_work();
  EXPECT_TRUE(engine->swap_out(state));
  const double before_us = engine->link().stats(Direction::kOut).busy_us;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(engine->link().stats(Direction::kOut).busy_us, before_us);
  device.finish_work();
  engine->wait_swapped_out(state);
  EXPECT_GT(engine->link().stats(Direction::kOut).busy_us, before_us);
}

TEST_F(LowerTiersTest, DiscardingGivesTheHostMemoryBack) {
  start(kHost);
  const StorageStatePtr state = resident(1);
  EXPECT_TRUE(leaves(state));
  engine->discard(state);
  EXPECT_EQ(engine->tiers().host().used_bytes(), 0);
}

TEST_F(LowerTiersTest, AFailedReadOfTheDiskIsTold) {
  start(0);
  const StorageStatePtr state = resident(1);
  EXPECT_TRUE(leaves(state));
  engine->store().fail_read_for_test(1, EIO);
  EXPECT_THROW(engine->acquire(state), DiskError);
  EXPECT_TRUE(is_filled(engine->acquire(state), 1));
}

} // namespace
} // namespace torchlms
