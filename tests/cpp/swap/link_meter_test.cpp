// SPDX-License-Identifier: BSD-3-Clause
#include "swap/link_meter.h"

#include <gtest/gtest.h>

#include "swap/transfer_queue.h"

namespace torchlms {
namespace {

using namespace std::chrono_literals;

const LinkMeter::Clock::time_point kEpoch{100s};

Link::Transfer submitted_at(LinkMeter::Clock::time_point time) {
  Link::Transfer transfer;
  transfer.submitted_at = time;
  return transfer;
}

TEST(LinkMeter, IsBusyWhileAnyChunkIsInFlight) {
  LinkMeter meter(kEpoch);
  const Link::Transfer transfer = submitted_at(kEpoch);
  meter.chunk_started(transfer, kEpoch + 1ms, true);
  meter.chunk_started(transfer, kEpoch + 2ms, false);
  meter.chunk_ended(kEpoch + 3ms, 10);
  meter.chunk_ended(kEpoch + 5ms, 20);
  meter.chunk_started(transfer, kEpoch + 9ms, false);
  EXPECT_DOUBLE_EQ(meter.stats(kEpoch + 10ms).busy_us, 5000);
  EXPECT_EQ(meter.stats(kEpoch + 10ms).bytes, 30);
}

TEST(LinkMeter, AResetInTheMiddleOfAChunkCountsFromThere) {
  LinkMeter meter(kEpoch);
  const Link::Transfer transfer = submitted_at(kEpoch);
  meter.chunk_started(transfer, kEpoch, true);
  meter.reset(kEpoch + 4ms);
  meter.chunk_ended(kEpoch + 5ms, 10);
  const LinkStats stats = meter.stats(kEpoch + 6ms);
  EXPECT_DOUBLE_EQ(stats.busy_us, 1000);
  EXPECT_EQ(stats.bytes, 10);
  EXPECT_EQ(stats.wait_us_p99, 0);
}

TEST(LinkMeter, WaitsAreThoseOfTheLastTransfers) {
  LinkMeter meter(kEpoch);
  const Link::Transfer transfer = submitted_at(kEpoch);
  for (size_t i = 0; i < LinkMeter::kMaxWaits; ++i) {
    meter.chunk_started(transfer, kEpoch + 1s, true);
  }
  EXPECT_DOUBLE_EQ(meter.stats(kEpoch).wait_us_p50, 1e6);
  for (size_t i = 0; i < LinkMeter::kMaxWaits; ++i) {
    meter.chunk_started(transfer, kEpoch + std::chrono::microseconds(i), true);
  }
  EXPECT_NEAR(meter.stats(kEpoch).wait_us_p50, LinkMeter::kMaxWaits * 0.5, 2);
  EXPECT_NEAR(meter.stats(kEpoch).wait_us_p99, LinkMeter::kMaxWaits * 0.99, 2);
}

TEST(LinkMeter, CountsTransfersAndThoseThatWereLate) {
  LinkMeter meter(kEpoch);
  Link::Transfer transfer = submitted_at(kEpoch);
  meter.transfer_ended(transfer, kEpoch);
  transfer.late = true;
  meter.transfer_ended(transfer, kEpoch);
  EXPECT_EQ(meter.stats(kEpoch).num_transfers, 2);
  EXPECT_EQ(meter.stats(kEpoch).num_late, 1);
}

TEST(LinkMeter, KeepsTheNewestRecordsUntilTheyAreTaken) {
  LinkMeter meter(kEpoch);
  Link::Transfer transfer = submitted_at(kEpoch);
  transfer.direction = Direction::kIn;
  transfer.moved_bytes = 7;
  for (size_t i = 0; i <= LinkMeter::kMaxRecords; ++i) {
    transfer.started_at = kEpoch + std::chrono::microseconds(i);
    meter.transfer_ended(transfer, transfer.started_at + 3us);
  }
  meter.reset(kEpoch + 1s);
  const auto records = meter.take_records();
  ASSERT_EQ(records.size(), LinkMeter::kMaxRecords);
  EXPECT_EQ(records.front().start_us, 1);
  EXPECT_EQ(records.front().end_us, 4);
  EXPECT_EQ(records.front().bytes, 7);
  EXPECT_EQ(records.front().direction, Direction::kIn);
  EXPECT_TRUE(meter.take_records().empty());
}

} // namespace
} // namespace torchlms
