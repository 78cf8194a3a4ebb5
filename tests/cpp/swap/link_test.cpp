// SPDX-License-Identifier: BSD-3-Clause
#include "swap/link.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace torchlms {
namespace {

constexpr Bytes kBlock = 4096;
constexpr auto kOut = Direction::kOut;
constexpr auto kIn = Direction::kIn;

// Without ageing, which would make the order depend on how fast the machine is.
Link::Options options(Bytes chunk_bytes, int credits, double limit_bytes_per_s = 0) {
  return {chunk_bytes, credits, limit_bytes_per_s, int64_t{1} << 50};
}

// What the done callback of one transfer was told. Shared with the callback.
class Outcome {
 public:
  void set(bool complete, std::exception_ptr error) {
    ++num_calls_;
    complete_ = complete;
    error_ = error;
    if (num_calls_ == 1) {
      ended_.set_value();
    }
  }
  bool complete() {
    future_.wait();
    return complete_;
  }
  std::exception_ptr error() {
    future_.wait();
    return error_;
  }
  int num_calls() const {
    return num_calls_;
  }

 private:
  std::atomic<int> num_calls_ = 0;
  bool complete_ = false;
  std::exception_ptr error_;
  std::promise<void> ended_;
  std::future<void> future_ = ended_.get_future();
};
using OutcomePtr = std::shared_ptr<Outcome>;

Link::DoneFn into(OutcomePtr outcome) {
  return [outcome](bool complete, std::exception_ptr error) { outcome->set(complete, error); };
}

void ignore(bool, std::exception_ptr) {}
void nothing(Bytes, Bytes) {}

OutcomePtr start(Link& link, Direction direction, TransferClass cls, Bytes size, Link::ChunkFn chunk) {
  auto outcome = std::make_shared<Outcome>();
  link.submit(direction, cls, size, std::move(chunk), into(outcome));
  return outcome;
}

// Holds the chunks that pass it until it is opened.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++num_arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void wait_for_arrival(int count = 1) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, count] { return num_arrived_ >= count; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_arrived_ = 0;
  bool open_ = false;
};

// A link with one credit whose only ordinary thread is held in a chunk of its own until release().
class HeldLink {
 public:
  HeldLink() {
    start(link, kOut, TransferClass::kPrefetch, kBlock, [this](Bytes, Bytes) { gate_.pass(); });
    gate_.wait_for_arrival();
  }
  ~HeldLink() {
    gate_.open();
  }
  OutcomePtr submit(TransferClass cls, const std::string& name, int num_chunks = 1) {
    auto outcome = std::make_shared<Outcome>();
    const auto chunk = [this, name](Bytes, Bytes) {
      const std::lock_guard lock(mutex_);
      order_ += name;
    };
    last = link.submit(kOut, cls, num_chunks * kBlock, chunk, into(outcome));
    return outcome;
  }
  void release() {
    gate_.open();
  }
  std::string order() {
    const std::lock_guard lock(mutex_);
    return order_;
  }

  Link::TransferPtr last;

 private:
  Gate gate_;
  std::mutex mutex_;
  std::string order_;

 public:
  Link link{options(kBlock, 1)}; // last: its threads use what stands above
};

TEST(Link, MovesEveryByteOnceInChunksOfWholeBlocks) {
  Link link(options(5000, 3)); // rounded up to two blocks
  for (const Direction direction : {kOut, kIn}) {
    const Bytes size = 20 * kBlock + 123;
    std::mutex mutex;
    std::map<Bytes, Bytes> chunks;
    const auto note = [&](Bytes offset, Bytes bytes) {
      const std::lock_guard lock(mutex);
      chunks.emplace(offset, bytes);
    };
    auto outcome = start(link, direction, TransferClass::kPrefetch, size, note);
    EXPECT_TRUE(outcome->complete());
    EXPECT_EQ(outcome->error(), nullptr);
    Bytes end = 0;
    for (const auto& [offset, bytes] : chunks) {
      EXPECT_EQ(offset, end);
      EXPECT_EQ(bytes, std::min(2 * kBlock, size - offset));
      end = offset + bytes;
    }
    EXPECT_EQ(end, size);
  }
}

TEST(Link, AnEmptyTransferIsDoneWithoutAChunk) {
  Link link(options(kBlock, 1));
  auto outcome = start(link, kIn, TransferClass::kEvict, 0, [](Bytes, Bytes) { ADD_FAILURE(); });
  EXPECT_TRUE(outcome->complete());
  EXPECT_EQ(link.stats(kIn).num_transfers, 0);
}

TEST(Link, RefusesSenselessOptionsAndSizes) {
  EXPECT_THROW(Link(options(0, 1)), std::invalid_argument);
  EXPECT_THROW(Link(options(kBlock, 0)), std::invalid_argument);
  Link link(options(kBlock, 1));
  EXPECT_THROW(link.submit(kIn, TransferClass::kEvict, -1, nothing, ignore), std::invalid_argument);
}

TEST(Link, WithOneCreditServesByClassThenSubmission) {
  HeldLink held;
  auto last = held.submit(TransferClass::kBackground, "f");
  held.submit(TransferClass::kEvict, "d");
  held.submit(TransferClass::kEvict, "e");
  held.submit(TransferClass::kPrefetch, "a");
  held.submit(TransferClass::kPrefetch, "b");
  held.submit(TransferClass::kPrefetch, "c");
  held.release();
  EXPECT_TRUE(last->complete());
  EXPECT_EQ(held.order(), "abcdef");
}

TEST(Link, AMoreUrgentTransferWaitsForOneChunkOnly) {
  Link link(options(kBlock, 1));
  Gate gate;
  std::string order; // one ordinary thread writes it
  const auto chunk_of_bulk = [&](Bytes, Bytes) {
    gate.pass();
    order += 'b';
  };
  auto bulk = start(link, kIn, TransferClass::kBackground, 4 * kBlock, chunk_of_bulk);
  gate.wait_for_arrival();
  start(link, kIn, TransferClass::kPrefetch, 2 * kBlock, [&](Bytes, Bytes) { order += 'P'; });
  gate.open();
  EXPECT_TRUE(bulk->complete());
  EXPECT_EQ(order, "bPPbbb");
}

TEST(Link, DemandIsServedWhileAllCreditsAreTaken) {
  HeldLink held;
  held.submit(TransferClass::kPrefetch, "p");
  EXPECT_TRUE(held.submit(TransferClass::kDemand, "d", 3)->complete());
  EXPECT_EQ(held.order(), "ddd");
}

TEST(Link, APromotedTransferTakesTheReservedCredit) {
  HeldLink held;
  auto outcome = held.submit(TransferClass::kBackground, "b");
  const Link::TransferPtr transfer = held.last;
  held.link.promote(transfer, TransferClass::kDemand);
  EXPECT_TRUE(outcome->complete());
  held.link.promote(transfer, TransferClass::kDemand); // too late: no effect
  EXPECT_EQ(held.link.stats(kOut).num_late, 1);
}

TEST(Link, PromotionNeverMakesATransferLessUrgent) {
  HeldLink held;
  auto first = held.submit(TransferClass::kPrefetch, "p");
  held.link.promote(held.last, TransferClass::kBackground);
  auto second = held.submit(TransferClass::kEvict, "e");
  held.release();
  EXPECT_TRUE(second->complete());
  EXPECT_EQ(held.order(), "pe");
}

TEST(Link, ACancelledQueuedTransferRunsNoChunkAndIsDone) {
  HeldLink held;
  auto outcome = held.submit(TransferClass::kPrefetch, "p");
  EXPECT_TRUE(held.link.cancel(held.last));
  EXPECT_FALSE(outcome->complete()); // ends although the ordinary thread is held
  EXPECT_EQ(outcome->error(), nullptr);
  EXPECT_TRUE(held.link.cancel(held.last));
  held.release();
  EXPECT_TRUE(held.submit(TransferClass::kPrefetch, "q")->complete());
  EXPECT_EQ(held.order(), "q");
  EXPECT_EQ(outcome->num_calls(), 1);
}

TEST(Link, ACancelledRunningTransferIsDoneAfterItsChunksInFlight) {
  Link link(options(kBlock, 2));
  Gate gate;
  std::atomic<int> num_ended = 0;
  const auto chunk = [&](Bytes, Bytes) {
    gate.pass();
    ++num_ended;
  };
  auto outcome = std::make_shared<Outcome>();
  const auto transfer = link.submit(kOut, TransferClass::kEvict, 9 * kBlock, chunk, into(outcome));
  gate.wait_for_arrival(2);
  EXPECT_TRUE(link.cancel(transfer));
  EXPECT_EQ(outcome->num_calls(), 0);
  gate.open();
  EXPECT_FALSE(outcome->complete());
  EXPECT_EQ(num_ended, 2);
}

TEST(Link, CancellingAfterTheLastChunkStartedIsTooLate) {
  Link link(options(kBlock, 1));
  Gate gate;
  auto outcome = std::make_shared<Outcome>();
  const auto transfer =
      link.submit(kOut, TransferClass::kEvict, kBlock, [&](Bytes, Bytes) { gate.pass(); }, into(outcome));
  gate.wait_for_arrival();
  EXPECT_FALSE(link.cancel(transfer));
  gate.open();
  EXPECT_TRUE(outcome->complete());
  EXPECT_FALSE(link.cancel(transfer));
}

TEST(Link, AChunkThatThrowsStopsTheTransferAndReachesDoneOnce) {
  Link link(options(kBlock, 1));
  std::atomic<int> num_chunks = 0;
  const auto chunk = [&](Bytes offset, Bytes) {
    ++num_chunks;
    if (offset == kBlock) {
      throw std::runtime_error("second chunk");
    }
  };
  auto outcome = start(link, kIn, TransferClass::kPrefetch, 5 * kBlock, chunk);
  EXPECT_FALSE(outcome->complete());
  try {
    std::rethrow_exception(outcome->error());
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "second chunk");
  }
  EXPECT_EQ(num_chunks, 2);
  EXPECT_EQ(link.stats(kIn).bytes, kBlock);
}

TEST(Link, SeveralChunksThatThrowAtOnceMakeOneDone) {
  Link link(options(kBlock, 3));
  Gate gate;
  const auto chunk = [&](Bytes, Bytes) {
    gate.pass();
    throw std::runtime_error("each");
  };
  auto outcome = start(link, kIn, TransferClass::kPrefetch, 3 * kBlock, chunk);
  gate.wait_for_arrival(3);
  gate.open();
  EXPECT_FALSE(outcome->complete());
  EXPECT_NE(outcome->error(), nullptr);
  EXPECT_EQ(outcome->num_calls(), 1);
}

TEST(Link, BackgroundIsNotStarvedByASteadyStreamOfPrefetches) {
  Link* target = nullptr;
  std::atomic<bool> stop = false;
  std::atomic<int> num_left = 50000;
  const auto chunk = [](Bytes, Bytes) { std::this_thread::sleep_for(std::chrono::microseconds(100)); };
  const Link::DoneFn submit_next = [&](bool, std::exception_ptr) {
    if (!stop && --num_left > 0) {
      target->submit(kOut, TransferClass::kPrefetch, kBlock, chunk, submit_next);
    }
  };
  Link::Options ageing = options(kBlock, 1);
  ageing.ageing_us = 1000;
  Link link(ageing);
  target = &link;
  for (int i = 0; i < 2; ++i) { // one is always queued while the other ends
    link.submit(kOut, TransferClass::kPrefetch, kBlock, chunk, submit_next);
  }
  EXPECT_TRUE(start(link, kOut, TransferClass::kBackground, kBlock, nothing)->complete());
  EXPECT_GT(num_left, 0); // else the stream had ended by itself
  stop = true;
}

TEST(Link, TheLimitIsNeverExceededByAllClassesTogether) {
  const double limit = 40e6;
  const auto began = std::chrono::steady_clock::now();
  Link link(options(Bytes{4} << 20, 2, limit));
  std::vector<OutcomePtr> outcomes;
  for (const auto cls : {TransferClass::kDemand, TransferClass::kPrefetch, TransferClass::kEvict}) {
    outcomes.push_back(start(link, kOut, cls, 3'000'000, nothing));
  }
  for (const OutcomePtr& outcome : outcomes) {
    EXPECT_TRUE(outcome->complete());
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - began;
  EXPECT_EQ(link.stats(kOut).bytes, 9'000'000);
  EXPECT_GE(elapsed.count(), 9e6 / limit);
}

TEST(Link, ALowLimitDoesNotHoldUpTheDestructor) {
  OutcomePtr outcome;
  std::promise<void> started;
  {
    Link link(options(kBlock, 1, 0.1)); // eleven hours a chunk
    outcome =
        start(link, kOut, TransferClass::kEvict, 2 * kBlock, [&](Bytes, Bytes) { started.set_value(); });
    started.get_future().wait();
  }
  EXPECT_FALSE(outcome->complete());
}

TEST(Link, TheDestructorEndsEveryTransfer) {
  Gate gate;
  std::vector<OutcomePtr> outcomes;
  auto late = std::make_shared<Outcome>();
  std::thread opener;
  {
    Link link(options(kBlock, 1));
    for (int i = 0; i < 10; ++i) {
      outcomes.push_back(std::make_shared<Outcome>());
      const Link::DoneFn done = [&, outcome = outcomes.back()](bool complete, std::exception_ptr error) {
        if (outcome == outcomes.back()) { // a callback may still submit, to either direction
          link.submit(kIn, TransferClass::kEvict, kBlock, nothing, into(late));
        }
        outcome->set(complete, error);
      };
      link.submit(kOut, TransferClass::kEvict, kBlock, [&](Bytes, Bytes) { gate.pass(); }, done);
    }
    gate.wait_for_arrival();
    opener = std::thread([&] {
      EXPECT_FALSE(outcomes.back()->complete()); // cancelled by the destructor
      gate.open();
    });
  }
  opener.join();
  for (size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_EQ(outcomes[i]->num_calls(), 1);
    EXPECT_EQ(outcomes[i]->complete(), i == 0);
  }
  EXPECT_EQ(late->num_calls(), 1);
}

TEST(Link, ReleasesTheCallbacksWhenATransferEnds) {
  Link link(options(kBlock, 1));
  std::promise<void> released;
  std::shared_ptr<void> captured(nullptr, [&](void*) { released.set_value(); });
  Link::ChunkFn chunk = [captured](Bytes, Bytes) {};
  Link::DoneFn done = [captured = std::move(captured)](bool, std::exception_ptr) {};
  const auto transfer = link.submit(kOut, TransferClass::kEvict, kBlock, std::move(chunk), std::move(done));
  released.get_future().wait(); // although the transfer is still held
  EXPECT_NE(transfer, nullptr);
}

TEST(Link, ItsThreadsLeaveSignalsToTheApplication) {
  Link link(options(kBlock, 1));
  sigset_t mask;
  const auto chunk = [&](Bytes, Bytes) { pthread_sigmask(SIG_SETMASK, nullptr, &mask); };
  EXPECT_TRUE(start(link, kOut, TransferClass::kEvict, kBlock, chunk)->complete());
  EXPECT_TRUE(sigismember(&mask, SIGINT));
  EXPECT_FALSE(sigismember(&mask, SIGSEGV));
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_FALSE(sigismember(&mask, SIGINT));
}

TEST(Link, AForkedChildMayDropItsCopy) {
  auto link = std::make_unique<Link>(options(kBlock, 1));
  EXPECT_TRUE(start(*link, kOut, TransferClass::kEvict, kBlock, nothing)->complete());
  const pid_t child = ::fork();
  if (child == 0) {
    link.reset();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(start(*link, kOut, TransferClass::kEvict, kBlock, nothing)->complete());
}

TEST(Link, MeasuresItsDirectionsApart) {
  Link link(options(kBlock, 1));
  for (const Direction direction : {kIn, kOut, kIn}) {
    EXPECT_TRUE(start(link, direction, TransferClass::kEvict, 3 * kBlock, nothing)->complete());
  }
  EXPECT_EQ(link.stats(kIn).bytes, 6 * kBlock);
  EXPECT_EQ(link.stats(kOut).num_transfers, 1);
  const auto records = link.take_records();
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[1].direction, kOut); // in order of their ends
  EXPECT_LE(records[2].end_us, link.now_us());
  link.reset_stats();
  EXPECT_EQ(link.stats(kIn).bytes, 0);
}

TEST(Link, EveryDoneComesOnceUnderRandomSubmitsPromotesAndCancels) {
  std::atomic<int> num_submitted = 0;
  std::atomic<int> num_done = 0;
  std::atomic<int> num_wrong = 0;
  {
    Link link(options(kBlock, 2));
    const auto work = [&](unsigned seed) {
      std::mt19937 random(seed);
      std::vector<Link::TransferPtr> transfers;
      for (int i = 0; i < 1500; ++i) {
        const Bytes size = static_cast<Bytes>(random() % 6) * kBlock + static_cast<Bytes>(random() % 2);
        const bool fails = random() % 16 == 0;
        auto moved = std::make_shared<std::atomic<Bytes>>(0);
        auto calls = std::make_shared<std::atomic<int>>(0);
        const auto chunk = [moved, fails](Bytes offset, Bytes bytes) {
          if (fails && offset >= kBlock) {
            throw std::runtime_error("injected");
          }
          *moved += bytes;
        };
        const auto done = [&, size, moved, calls](bool complete, const std::exception_ptr& error) {
          num_wrong += ++*calls != 1 || (complete && (*moved != size || error)) ? 1 : 0;
          ++num_done;
        };
        ++num_submitted;
        transfers.push_back(link.submit(
            random() % 2 == 0 ? kOut : kIn, static_cast<TransferClass>(random() % 4), size, chunk, done));
        const Link::TransferPtr& any = transfers[random() % transfers.size()];
        if (random() % 3 == 0) {
          link.promote(any, static_cast<TransferClass>(random() % 4));
        } else if (random() % 3 == 0) {
          link.cancel(any);
        }
      }
    };
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < 6; ++seed) {
      threads.emplace_back(work, seed);
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  EXPECT_EQ(num_done, num_submitted);
  EXPECT_EQ(num_wrong, 0);
}

} // namespace
} // namespace torchlms
