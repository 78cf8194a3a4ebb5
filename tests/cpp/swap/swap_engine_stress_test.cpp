// SPDX-License-Identifier: BSD-3-Clause
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <thread>
#include <utility>
#include <vector>

#include "swap/swap_engine_fixture.h"

namespace torchlms {
namespace {

constexpr int kThreads = 4;
constexpr int kRounds = 400;
constexpr size_t kSlots = 24;
constexpr Bytes kLargest = 60'000;
// Each thread keeps at most one block from being moved, and one wants room: an allocation that fails
// is a fault of the engine.
constexpr Bytes kBudget = (kThreads + 1) * (kLargest + FakeDevice::kRounding);

// What autograd's handles are to a storage: the last one to die discards it.
struct Handle {
  Handle(SwapEngine& engine, StorageStatePtr state, int seed)
      : engine(engine), state(std::move(state)), seed(seed) {}
  ~Handle() {
    engine.discard(state);
  }

  SwapEngine& engine;
  const StorageStatePtr state;
  std::shared_mutex mutex; // held exclusively while the bytes are written
  int seed; // of the bytes; guarded by mutex
};
using HandlePtr = std::shared_ptr<Handle>;

class Slots {
 public:
  HandlePtr get(size_t slot) {
    const std::lock_guard lock(mutex_);
    return handles_[slot];
  }
  void put(size_t slot, HandlePtr handle) {
    const std::lock_guard lock(mutex_);
    handles_[slot].swap(handle); // what was there dies after the lock
  }

 private:
  std::mutex mutex_;
  std::array<HandlePtr, kSlots> handles_;
};

// One thread of the program: takes storages at random and does with them whatever may be done.
class Worker {
 public:
  Worker(FakeDevice& device, SwapEngine& engine, Slots& slots, unsigned seed, bool has_faults)
      : device_(device), engine_(engine), slots_(slots), random_(seed), has_faults_(has_faults) {}

  void run() {
    for (int round = 0; round < kRounds; ++round) {
      try {
        step();
      } catch (const DiskError&) {
        EXPECT_TRUE(has_faults_);
      } catch (const c10::OutOfMemoryError&) {
        EXPECT_TRUE(has_faults_); // what cannot be written cannot leave
      }
    }
  }

 private:
  void step() {
    const size_t slot = below(kSlots);
    HandlePtr handle = slots_.get(slot);
    const int choice = below(16);
    if (!handle || choice == 0) {
      slots_.put(slot, adopt());
    } else if (choice <= 3) {
      engine_.swap_out(handle->state);
    } else if (choice <= 5) {
      engine_.try_swap_in(handle->state);
    } else if (choice <= 9) {
      check(*handle);
    } else if (choice == 10) {
      rewrite(*handle);
    } else if (choice == 11) {
      const StorageStatePtr state = handle->state;
      handle.reset(); // the tape waits for states whose handles may die meanwhile
      engine_.wait_swapped_out(state);
    } else if (choice == 12) {
      engine_.reclaim(1 + below(2 * kLargest));
    } else if (choice == 13) {
      engine_.relieve(below(kBudget));
    } else if (choice == 14) {
      slots_.put(slot, nullptr);
    } else {
      disturb();
    }
  }

  int below(int limit) {
    return std::uniform_int_distribution(0, limit - 1)(random_);
  }

  HandlePtr adopt() {
    const auto size = static_cast<size_t>(kLargest - below(kLargest / 4));
    c10::Storage storage(
        c10::Storage::use_byte_size_t(),
        size,
        device_.allocator()->allocate(size),
        device_.allocator(),
        true);
    const int seed = below(1000);
    fill(storage, seed);
    const Bytes held = device_.block_of(storage.data()).bytes;
    return std::make_shared<Handle>(engine_, engine_.adopt(std::move(storage), held, true), seed);
  }

  void check(Handle& handle) {
    const std::shared_lock lock(handle.mutex);
    const c10::Storage storage = engine_.acquire(handle.state);
    EXPECT_TRUE(is_filled(storage, handle.seed));
  }

  void rewrite(Handle& handle) {
    const std::lock_guard lock(handle.mutex);
    const c10::Storage storage = engine_.acquire(handle.state);
    engine_.wait_all_swapped_out(); // a cancelled copy may still read it: harmless, but a data race
    handle.seed = below(1000);
    fill(storage, handle.seed);
  }

  // Holds the link up for a moment, or lets a chunk of somebody fail.
  void disturb() {
    if (has_faults_) {
      engine_.store().fail_write_for_test(1 + below(20), below(2) * EIO);
      engine_.store().fail_read_for_test(1 + below(20), below(2) * EIO);
      engine_.rethrow_error();
    }
    const auto pause = std::chrono::microseconds(below(500));
    engine_.link().submit(
        below(2) == 0 ? Direction::kOut : Direction::kIn,
        static_cast<TransferClass>(below(4)),
        1 + below(4 * 4096),
        [pause](Bytes, Bytes) { std::this_thread::sleep_for(pause); },
        [](bool, std::exception_ptr) {});
  }

  FakeDevice& device_;
  SwapEngine& engine_;
  Slots& slots_;
  std::mt19937 random_;
  const bool has_faults_;
};

void check_and_discard_all(SwapEngine& engine, Slots& slots) {
  engine.store().fail_write_for_test(1, 0);
  engine.store().fail_read_for_test(1, 0);
  EXPECT_TRUE(eventually([&] {
    try {
      engine.wait_all_swapped_out();
      engine.rethrow_error();
      return true;
    } catch (const DiskError&) {
      return false;
    }
  }));
  for (size_t slot = 0; slot < kSlots; ++slot) {
    if (const HandlePtr handle = slots.get(slot)) {
      try {
        engine.acquire(handle->state);
      } catch (const DiskError&) { // of an earlier prefetch
      }
      EXPECT_TRUE(is_filled(engine.acquire(handle->state), handle->seed));
    }
    slots.put(slot, nullptr);
  }
}

class SwapEngineStressTest : public ::testing::TestWithParam<bool> {};

TEST_P(SwapEngineStressTest, NoByteIsLostAndNoRoomIsOverlookedByManyThreads) {
  FakeDevice device;
  std::atomic<unsigned> num_freed = 0;
  device.on_free([&] { std::this_thread::sleep_for(std::chrono::microseconds(num_freed++ * 7 % 100)); });
  Link::Options options;
  options.chunk_bytes = 4096;
  options.ageing_us = 1000;
  const unsigned seed = static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed());
  SCOPED_TRACE(seed);
  {
    SwapEngine engine(device, std::make_unique<DiskStore>(::testing::TempDir(), Bytes{1} << 26), options);
    device.set_budget(kBudget, [&](Bytes needed) { return engine.reclaim(needed); }, nullptr);
    Slots slots;
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] { Worker(device, engine, slots, seed * kThreads + i, GetParam()).run(); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_LE(device.take_peaks().held, kBudget);
    check_and_discard_all(engine, slots);
    EXPECT_TRUE(eventually([&] { return engine.store().used_bytes() == 0; }));
  }
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutDiskErrors, SwapEngineStressTest, ::testing::Bool());

} // namespace
} // namespace torchlms
