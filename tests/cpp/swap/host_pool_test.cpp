// SPDX-License-Identifier: BSD-3-Clause
#include "swap/host_pool.h"

#include <gtest/gtest.h>

#include <utility>

#include "swap/own_memory_device.h"

namespace torchlms {
namespace {

constexpr Bytes kPage = HostPool::kAlignment;

TEST(HostPoolTest, BlocksAreRoundedUpToPagesAndNotFurther) {
  OwnMemoryDevice device;
  HostPool pool(device, 100 * kPage, /*pins=*/true);
  const HostBlock block = pool.try_allocate(9 * kPage + 1);
  EXPECT_TRUE(block);
  EXPECT_EQ(pool.used_bytes(), 10 * kPage);
  EXPECT_EQ(device.pinned_bytes(), 10 * kPage);
}

TEST(HostPoolTest, DeclinesBeyondTheBudget) {
  OwnMemoryDevice device;
  HostPool pool(device, 10 * kPage, true);
  const HostBlock block = pool.try_allocate(6 * kPage);
  EXPECT_FALSE(pool.was_full());
  EXPECT_FALSE(pool.try_allocate(5 * kPage));
  EXPECT_TRUE(pool.was_full());
  EXPECT_TRUE(pool.try_allocate(4 * kPage));
}

TEST(HostPoolTest, AnEmptyPoolHasNoBlocks) {
  OwnMemoryDevice device;
  HostPool pool(device, 0, true);
  EXPECT_FALSE(pool.try_allocate(1));
}

TEST(HostPoolTest, ASteadyStateAllocatesNothing) {
  OwnMemoryDevice device;
  HostPool pool(device, 100 * kPage, true);
  for (int step = 0; step < 10; ++step) {
    const HostBlock one = pool.try_allocate(3 * kPage);
    const HostBlock two = pool.try_allocate(5 * kPage);
    const HostBlock three = pool.try_allocate(3 * kPage);
    EXPECT_TRUE(one && two && three);
  }
  EXPECT_EQ(pool.num_allocations(), 3);
  EXPECT_EQ(pool.used_bytes(), 0);
  EXPECT_EQ(pool.peak_bytes(), 11 * kPage);
}

TEST(HostPoolTest, KeptBlocksMakeRoomForThoseOfOtherSizes) {
  OwnMemoryDevice device;
  HostPool pool(device, 10 * kPage, true);
  pool.try_allocate(6 * kPage) = HostBlock();
  pool.try_allocate(2 * kPage) = HostBlock();
  const HostBlock block = pool.try_allocate(9 * kPage);
  EXPECT_TRUE(block);
  EXPECT_LE(device.pinned_bytes(), 10 * kPage);
}

TEST(HostPoolTest, PageableMemoryServesWhereNoMoreCanBeLocked) {
  OwnMemoryDevice device;
  device.allow_pinned(4 * kPage);
  HostPool pool(device, 100 * kPage, true);
  const HostBlock locked = pool.try_allocate(4 * kPage);
  EXPECT_FALSE(pool.is_pageable());
  const HostBlock pageable = pool.try_allocate(4 * kPage);
  EXPECT_TRUE(pageable);
  EXPECT_TRUE(pool.is_pageable());
  EXPECT_EQ(device.pinned_bytes(), 4 * kPage);
}

TEST(HostPoolTest, PageableMemoryByWishIsNoFailure) {
  OwnMemoryDevice device;
  HostPool pool(device, 100 * kPage, /*pins=*/false);
  EXPECT_TRUE(pool.try_allocate(kPage));
  EXPECT_FALSE(pool.is_pageable());
  EXPECT_EQ(device.pinned_bytes(), 0);
}

TEST(HostPoolTest, AMovedBlockIsGivenBackOnce) {
  OwnMemoryDevice device;
  HostPool pool(device, 10 * kPage, true);
  HostBlock block = pool.try_allocate(kPage);
  HostBlock other = std::move(block);
  EXPECT_FALSE(block); // NOLINT(bugprone-use-after-move): that is the question
  EXPECT_TRUE(other);
  other = HostBlock();
  EXPECT_EQ(pool.used_bytes(), 0);
}

} // namespace
} // namespace torchlms
