// SPDX-License-Identifier: BSD-3-Clause
#include "swap/pacer.h"

#include <gtest/gtest.h>

namespace torchlms {
namespace {

using namespace std::chrono_literals;

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr double kMiBPerSecond = 1 << 20;
const Pacer::Clock::time_point kStart{100s};

TEST(Pacer, WithoutALimitNothingWaitsAndChunksAreAsLargeAsWished) {
  Pacer pacer(0);
  pacer.restart(kStart);
  EXPECT_EQ(pacer.charge(kStart, 100 * kMiB), kStart);
  EXPECT_LE(pacer.next_start(), kStart);
  EXPECT_EQ(pacer.chunk_bytes(8 * kMiB), 8 * kMiB);
}

TEST(Pacer, ChunksAreTenMillisecondsOfTheLimitWithinBounds) {
  EXPECT_EQ(Pacer(200 * kMiBPerSecond).chunk_bytes(4 * kMiB), 2 * kMiB);
  EXPECT_EQ(Pacer(1000 * kMiBPerSecond).chunk_bytes(4 * kMiB), 4 * kMiB);
  EXPECT_EQ(Pacer(1 * kMiBPerSecond).chunk_bytes(4 * kMiB), kMiB / 4);
  EXPECT_EQ(Pacer(1 * kMiBPerSecond).chunk_bytes(8192), 8192);
  EXPECT_EQ(Pacer(100e6).chunk_bytes(4 * kMiB) % 4096, 0);
}

TEST(Pacer, TheNextChunkStartsWhenTheChargedBytesMayHaveMoved) {
  Pacer pacer(100 * kMiBPerSecond);
  pacer.restart(kStart);
  EXPECT_EQ(pacer.charge(kStart, kMiB), kStart + 10ms);
  EXPECT_EQ(pacer.next_start(), kStart + 10ms);
  EXPECT_EQ(pacer.charge(kStart + 10ms, 5 * kMiB), kStart + 60ms);
}

TEST(Pacer, ThreadsThatWakeUpLateDoNotLowerTheRate) {
  Pacer pacer(100 * kMiBPerSecond);
  pacer.restart(kStart);
  auto now = kStart;
  for (int i = 0; i < 100; ++i) {
    pacer.charge(now, kMiB);
    now = pacer.next_start() + 3ms;
  }
  EXPECT_EQ(pacer.next_start(), kStart + 1s);
}

TEST(Pacer, IdleTimeIsNotSavedUp) {
  Pacer pacer(100 * kMiBPerSecond);
  pacer.restart(kStart);
  pacer.charge(kStart, kMiB);
  pacer.restart(kStart + 5s);
  EXPECT_EQ(pacer.charge(kStart + 5s, kMiB), kStart + 5s + 10ms);
}

TEST(Pacer, ARestartWhileBytesAreStillOwedChangesNothing) {
  Pacer pacer(100 * kMiBPerSecond);
  pacer.restart(kStart);
  pacer.charge(kStart, 10 * kMiB);
  pacer.restart(kStart + 1ms);
  EXPECT_EQ(pacer.next_start(), kStart + 100ms);
}

} // namespace
} // namespace torchlms
