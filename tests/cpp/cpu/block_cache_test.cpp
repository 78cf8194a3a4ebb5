// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/block_cache.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace torchlms {
namespace {

constexpr Bytes kMiB = 1 << 20;

bool is_mapped(const void* data) {
  unsigned char unused;
  return mincore(const_cast<void*>(data), 1, &unused) == 0;
}

class BlockCacheTest : public ::testing::Test {
 protected:
  void TearDown() override {
    cache.give_back(cache.bytes());
    EXPECT_EQ(cache.bytes(), 0);
  }

  char* map_filled(Bytes size, char fill) {
    char* data = static_cast<char*>(cache.map(size));
    std::memset(data, fill, size);
    return data;
  }
  // Free ranges that touch nothing free: each is followed by a page that stays taken.
  void put_apart(const std::vector<Bytes>& sizes) {
    Bytes total = 0;
    for (const Bytes size : sizes) {
      total += size + PageMap::page_bytes();
    }
    char* data = static_cast<char*>(cache.map(total));
    for (const Bytes size : sizes) {
      cache.put(data, size);
      apart.push_back(data);
      data += size + PageMap::page_bytes();
    }
  }

  BlockCache cache;
  std::vector<char*> apart;
};

TEST_F(BlockCacheTest, AnEmptyCacheHasNothingToTake) {
  EXPECT_EQ(cache.take(kMiB), nullptr);
}

TEST_F(BlockCacheTest, AFreedBlockIsTakenAgainWithItsPages) {
  char* data = map_filled(kMiB, 'a');
  cache.put(data, kMiB);
  EXPECT_EQ(cache.take(kMiB), data);
  EXPECT_EQ(data[kMiB - 1], 'a');
  cache.put(data, kMiB);
}

TEST_F(BlockCacheTest, TheBestFittingRangeIsTaken) {
  put_apart({4 * kMiB, 2 * kMiB, 3 * kMiB});
  EXPECT_EQ(cache.take(2 * kMiB), apart[1]);
  EXPECT_EQ(cache.take(2 * kMiB), apart[2]);
  EXPECT_EQ(cache.take(2 * kMiB), apart[0]);
}

TEST_F(BlockCacheTest, NothingIsTakenWhenNoRangeIsLongEnough) {
  put_apart({kMiB, kMiB});
  EXPECT_EQ(cache.take(kMiB + PageMap::page_bytes()), nullptr);
  EXPECT_EQ(cache.bytes(), 2 * kMiB);
}

TEST_F(BlockCacheTest, TheRestOfASplitRangeStaysFree) {
  char* data = map_filled(3 * kMiB, 'a');
  cache.put(data, 3 * kMiB);
  EXPECT_EQ(cache.take(kMiB), data);
  EXPECT_EQ(cache.bytes(), 2 * kMiB);
  EXPECT_EQ(cache.take(2 * kMiB), data + kMiB);
}

TEST_F(BlockCacheTest, FreedNeighboursAreOneRangeAgain) {
  for (const std::vector<int>& order :
       std::vector<std::vector<int>>{{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}}) {
    char* data = map_filled(3 * kMiB, 'a');
    for (const int i : order) {
      cache.put(data + i * kMiB, kMiB);
    }
    EXPECT_EQ(cache.take(3 * kMiB), data);
    cache.put(data, 3 * kMiB);
    cache.give_back(3 * kMiB);
  }
}

TEST_F(BlockCacheTest, GivesBackTheSmallestRangeThatSuffices) {
  put_apart({4 * kMiB, 2 * kMiB, 3 * kMiB});
  cache.give_back(2 * kMiB);
  EXPECT_EQ(cache.bytes(), 7 * kMiB);
  EXPECT_FALSE(is_mapped(apart[1]));
  EXPECT_TRUE(is_mapped(apart[0]));
  EXPECT_TRUE(is_mapped(apart[2]));
}

TEST_F(BlockCacheTest, GivesBackSeveralRangesWhenNoneSuffices) {
  put_apart({kMiB, 2 * kMiB, 3 * kMiB});
  cache.give_back(5 * kMiB);
  EXPECT_EQ(cache.bytes(), kMiB);
}

TEST_F(BlockCacheTest, GivesBackNoMoreThanThereIs) {
  put_apart({kMiB});
  cache.give_back(5 * kMiB);
  EXPECT_EQ(cache.bytes(), 0);
}

TEST_F(BlockCacheTest, WhatIsLeftOfARangeAfterGivingBackCanBeTaken) {
  char* data = map_filled(4 * kMiB, 'a');
  cache.put(data, 4 * kMiB);
  cache.give_back(kMiB);
  char* rest = static_cast<char*>(cache.take(3 * kMiB));
  ASSERT_NE(rest, nullptr);
  std::memset(rest, 'b', 3 * kMiB);
  cache.put(rest, 3 * kMiB);
}

TEST_F(BlockCacheTest, GatheringMovesThePagesOfFreeRangesTogether) {
  char* data = map_filled(5 * kMiB, 'a');
  cache.put(data, kMiB);
  cache.put(data + 2 * kMiB, kMiB);
  cache.put(data + 4 * kMiB, kMiB);
  char* block = static_cast<char*>(cache.gather(2 * kMiB + kMiB / 2));
  // Fresh pages would read as zero.
  EXPECT_EQ(std::count(block, block + 2 * kMiB + kMiB / 2, 'a'), 2 * kMiB + kMiB / 2);
  EXPECT_EQ(cache.bytes(), kMiB / 2);
  EXPECT_EQ(data[kMiB], 'a');
  EXPECT_EQ(data[3 * kMiB], 'a');
}

TEST_F(BlockCacheTest, GatheringAddsFreshPagesWhereTheFreeOnesAreTooFew) {
  char* data = map_filled(kMiB, 'a');
  cache.put(data, kMiB);
  char* block = static_cast<char*>(cache.gather(3 * kMiB));
  EXPECT_EQ(std::count(block, block + 3 * kMiB, 'a'), kMiB);
  EXPECT_EQ(std::count(block, block + 3 * kMiB, '\0'), 2 * kMiB);
  EXPECT_EQ(cache.bytes(), 0);
}

TEST_F(BlockCacheTest, RangesTooSmallToMoveAreReplacedByFreshPages) {
  char* data = map_filled(kMiB, 'a');
  constexpr Bytes kSmall = 64 << 10;
  for (int i = 0; i < 8; i += 2) {
    cache.put(data + i * kSmall, kSmall);
  }
  char* block = static_cast<char*>(cache.gather(4 * kSmall));
  EXPECT_EQ(std::count(block, block + 4 * kSmall, '\0'), 4 * kSmall);
  EXPECT_EQ(cache.bytes(), 0);
  EXPECT_FALSE(is_mapped(data));
  EXPECT_TRUE(is_mapped(data + kSmall));
}

TEST_F(BlockCacheTest, AGatheredBlockCanBeGatheredFromAgain) {
  char* data = map_filled(8 * kMiB, 'a');
  for (int i = 0; i < 8; i += 2) {
    cache.put(data + i * kMiB, kMiB);
  }
  char* first = static_cast<char*>(cache.gather(4 * kMiB));
  cache.put(first + kMiB / 2, 2 * kMiB); // crosses the borders of three moved pieces
  cache.put(first + 3 * kMiB, kMiB);
  char* second = static_cast<char*>(cache.gather(3 * kMiB));
  EXPECT_EQ(std::count(second, second + 3 * kMiB, 'a'), 3 * kMiB);
  EXPECT_EQ(first[0], 'a');
  EXPECT_EQ(first[3 * kMiB - 1], 'a');
}

// The oracle is the pattern that the test wrote into each live block.
TEST_F(BlockCacheTest, RandomUseNeverHandsOutAPageTwice) {
  struct Live {
    char* data;
    Bytes size;
    char fill;
  };
  std::mt19937 random(7);
  std::vector<Live> live;
  Bytes live_bytes = 0;
  constexpr Bytes kBudget = 64 * kMiB;
  for (int step = 0; step < 1500; ++step) {
    const Bytes size = PageMap::page_bytes() * (16 + random() % 1024);
    if (live_bytes + size <= kBudget && random() % 3 != 0) {
      void* data = cache.take(size);
      if (data == nullptr) {
        const bool has_room = live_bytes + cache.bytes() + size <= kBudget;
        data = has_room ? cache.map(size) : cache.gather(size);
      }
      live.push_back({static_cast<char*>(data), size, static_cast<char>(step)});
      std::memset(data, live.back().fill, size);
      live_bytes += size;
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      const Live freed = live.back();
      live.pop_back();
      ASSERT_EQ(std::count(freed.data, freed.data + freed.size, freed.fill), freed.size);
      cache.put(freed.data, freed.size);
      live_bytes -= freed.size;
    }
    ASSERT_LE(live_bytes + cache.bytes(), kBudget);
  }
  for (const Live& block : live) {
    cache.put(block.data, block.size);
  }
}

} // namespace
} // namespace torchlms
