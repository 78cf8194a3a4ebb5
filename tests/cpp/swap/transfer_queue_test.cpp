// SPDX-License-Identifier: BSD-3-Clause
#include "swap/transfer_queue.h"

#include <gtest/gtest.h>

#include <vector>

namespace torchlms {
namespace {

using namespace std::chrono_literals;
using Clock = TransferQueue::Clock;

const Clock::time_point kStart{100s};

class TransferQueueTest : public ::testing::Test {
 protected:
  Link::TransferPtr push(TransferClass cls, Clock::time_point now = kStart) {
    auto transfer = std::make_shared<Link::Transfer>();
    transfer->cls = cls;
    transfer->sequence = sequence_++;
    queue_.push(transfer, now);
    return transfer;
  }
  Link::TransferPtr pop(Clock::time_point now = kStart) {
    Link::TransferPtr transfer = queue_.next(now);
    queue_.erase(transfer);
    return transfer;
  }

  TransferQueue queue_{500ms};
  int64_t sequence_ = 0;
};

TEST_F(TransferQueueTest, OrdersByClassThenSubmission) {
  const auto background = push(TransferClass::kBackground);
  const auto evict = push(TransferClass::kEvict);
  const auto sooner = push(TransferClass::kPrefetch);
  const auto later = push(TransferClass::kPrefetch);
  const auto demand = push(TransferClass::kDemand);
  for (const auto& expected : {demand, sooner, later, evict, background}) {
    EXPECT_EQ(pop(), expected);
  }
  EXPECT_TRUE(queue_.empty());
}

TEST_F(TransferQueueTest, PromotionMovesATransferAmongItsNewClass) {
  const auto prefetch = push(TransferClass::kPrefetch);
  const auto background = push(TransferClass::kBackground);
  EXPECT_FALSE(queue_.has_demand());
  queue_.promote(background, TransferClass::kDemand, kStart);
  EXPECT_TRUE(queue_.has_demand());
  EXPECT_EQ(queue_.next_demand(), background);
  EXPECT_EQ(pop(), background);
  EXPECT_EQ(pop(), prefetch);
}

TEST_F(TransferQueueTest, AClassThatWaitedTooLongGetsOneTurn) {
  const auto background = push(TransferClass::kBackground);
  const auto demand = push(TransferClass::kDemand);
  EXPECT_EQ(queue_.next(kStart + 499ms), demand);
  EXPECT_EQ(queue_.next(kStart + 500ms), background);
  EXPECT_EQ(queue_.next(kStart + 501ms), demand);
}

TEST_F(TransferQueueTest, TimeWithoutTransfersIsNoWaiting) {
  push(TransferClass::kBackground);
  pop();
  const auto demand = push(TransferClass::kDemand, kStart + 9s);
  push(TransferClass::kBackground, kStart + 9s);
  EXPECT_EQ(queue_.next(kStart + 9s + 100ms), demand);
}

TEST_F(TransferQueueTest, TurnsOutOfOrderAreOneInEightAndGoToTheLongestWaiting) {
  const auto background = push(TransferClass::kBackground);
  const auto evict = push(TransferClass::kEvict, kStart + 1ms);
  const auto demand = push(TransferClass::kDemand);
  std::vector<Link::TransferPtr> turns;
  for (int second = 1; second <= 16; ++second) { // so slow that every class is always overdue
    turns.push_back(queue_.next(kStart + std::chrono::seconds(second)));
  }
  for (size_t i = 0; i < turns.size(); ++i) {
    EXPECT_EQ(turns[i], i == 0 ? background : i == 8 ? evict : demand) << "turn " << i;
  }
}

} // namespace
} // namespace torchlms
