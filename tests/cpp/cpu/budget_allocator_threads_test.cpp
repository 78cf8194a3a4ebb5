// SPDX-License-Identifier: BSD-3-Clause
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "cpu/budget_allocator.h"

namespace torchlms {
namespace {

constexpr Bytes kMiB = 1 << 20;

// Blocks that reclaim may take from the threads that made them.
class ReclaimableBlocks {
 public:
  void put(c10::DataPtr block) {
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_.push_back(std::move(block));
  }
  // Null when there is none. The caller frees it, with no lock held.
  c10::DataPtr take(size_t choice) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (blocks_.empty()) {
      return {};
    }
    std::swap(blocks_[choice % blocks_.size()], blocks_.back());
    c10::DataPtr block = std::move(blocks_.back());
    blocks_.pop_back();
    return block;
  }

 private:
  std::mutex mutex_;
  std::vector<c10::DataPtr> blocks_;
};

Bytes random_size(std::mt19937& random) {
  return random() % 4 != 0 ? 1 + random() % 2000 : 1 + random() % (3 * kMiB);
}

class BudgetAllocatorThreadsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    BudgetAllocator::get().install();
  }
  void TearDown() override {
    allocator.clear_budget();
    EXPECT_EQ(allocator.held_bytes(), 0);
    EXPECT_EQ(allocator.cached_bytes(), 0);
  }

  // `work` by each of the threads, all at once; then joins them.
  template <class Work>
  static void run_threads(int num_threads, Work work) {
    std::vector<std::thread> threads;
    for (int i = 0; i < num_threads; ++i) {
      threads.emplace_back(work, i);
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  BudgetAllocator& allocator = BudgetAllocator::get();
};

TEST_F(BudgetAllocatorThreadsTest, TheBudgetIsNeverExceeded) {
  constexpr Bytes kBudget = 16 * kMiB;
  ReclaimableBlocks reclaimable;
  std::atomic<int> num_overruns{0};
  std::atomic<int> num_reclaims{0};
  const auto sample = [&] { num_overruns += allocator.reserved_bytes() > kBudget; };
  allocator.set_budget(
      kBudget,
      [&](Bytes) {
        sample();
        ++num_reclaims;
        return static_cast<bool>(reclaimable.take(0));
      },
      nullptr);
  allocator.take_peaks();
  run_threads(8, [&](int thread) {
    std::mt19937 random(thread);
    for (int i = 0; i < 2000; ++i) {
      const Bytes size = random_size(random);
      try {
        c10::DataPtr block = c10::GetCPUAllocator()->allocate(size);
        std::memset(block.mutable_get(), thread, std::min<Bytes>(size, 4096));
        reclaimable.put(std::move(block));
      } catch (const c10::OutOfMemoryError&) {
        // The other threads hold everything between allocate and put.
      }
      if (random() % 3 == 0) {
        reclaimable.take(random());
      }
      sample();
    }
  });
  EXPECT_EQ(num_overruns, 0);
  EXPECT_GT(num_reclaims, 100);
  EXPECT_LE(allocator.take_peaks().held, kBudget);
  while (reclaimable.take(0)) {
  }
}

TEST_F(BudgetAllocatorThreadsTest, NoByteOfALiveBlockIsSharedWithAnother) {
  allocator.set_budget(16 * kMiB, [](Bytes) { return false; }, nullptr);
  std::atomic<int> num_damaged{0};
  run_threads(4, [&](int thread) {
    std::mt19937 random(thread);
    std::vector<std::pair<c10::DataPtr, Bytes>> blocks;
    const auto is_intact = [&](const std::pair<c10::DataPtr, Bytes>& block) {
      const auto* bytes = static_cast<const char*>(block.first.get());
      return std::count(bytes, bytes + block.second, static_cast<char>(thread)) == block.second;
    };
    for (int i = 0; i < 500; ++i) {
      const Bytes size = random_size(random);
      if (c10::DataPtr block = allocator.try_allocate(size)) {
        std::memset(block.mutable_get(), thread, size);
        blocks.emplace_back(std::move(block), size);
      }
      while (blocks.size() > 6) {
        num_damaged += !is_intact(blocks.front());
        blocks.erase(blocks.begin());
      }
    }
  });
  EXPECT_EQ(num_damaged, 0);
}

TEST_F(BudgetAllocatorThreadsTest, ClearingTheBudgetWaitsForNoReclaimAndDestroysNone) {
  std::atomic<bool> destroyed{false};
  std::atomic<bool> destroyed_while_running{true};
  const auto watch = [&] {
    return std::shared_ptr<int>(new int(0), [&](int* owned) {
      destroyed = true;
      delete owned;
    });
  };
  allocator.set_budget(
      kMiB,
      [&, owned = watch()](Bytes) {
        std::thread([&] { allocator.clear_budget(); }).join();
        destroyed_while_running = destroyed.load();
        return true;
      },
      nullptr);
  const c10::DataPtr first = allocator.allocate(kMiB);
  EXPECT_NE(allocator.allocate(kMiB).get(), nullptr);
  EXPECT_FALSE(destroyed_while_running);
  EXPECT_TRUE(destroyed);
}

TEST_F(BudgetAllocatorThreadsTest, SeveralThreadsMayReclaimAtOnce) {
  std::atomic<int> num_inside{0};
  allocator.set_budget(
      kMiB,
      [&](Bytes) {
        ++num_inside;
        while (num_inside < 2) { // hangs if one excludes the other
          std::this_thread::yield();
        }
        return false;
      },
      nullptr);
  std::atomic<int> num_failed{0};
  run_threads(2, [&](int) {
    try {
      allocator.allocate(2 * kMiB);
    } catch (const c10::OutOfMemoryError&) {
      ++num_failed;
    }
  });
  EXPECT_EQ(num_failed, 2);
}

TEST_F(BudgetAllocatorThreadsTest, BudgetsMayComeAndGoWhileOthersAllocate) {
  std::atomic<bool> done{false};
  std::thread changer([&] {
    for (int i = 0; i < 300; ++i) {
      allocator.set_budget(i % 2 == 0 ? kMiB : 64 * kMiB, [](Bytes) { return true; }, nullptr);
      std::this_thread::yield();
      allocator.clear_budget();
    }
    done = true;
  });
  run_threads(3, [&](int thread) {
    std::mt19937 random(thread);
    std::vector<c10::DataPtr> blocks;
    while (!done) {
      blocks.push_back(allocator.allocate(random_size(random)));
      if (blocks.size() > 8) {
        blocks.clear();
      }
    }
  });
  changer.join();
}

TEST_F(BudgetAllocatorThreadsTest, ManagedBlocksMakeNoPeakOfTheBaseInAnyThread) {
  allocator.take_peaks();
  run_threads(4, [&](int thread) {
    std::mt19937 random(thread);
    for (int i = 0; i < 20000; ++i) {
      const Bytes size = 1 + random() % 2000;
      allocator.add_managed_bytes(size);
      allocator.allocate(size).clear();
      allocator.add_managed_bytes(-size);
    }
  });
  const Device::Peaks peaks = allocator.take_peaks();
  EXPECT_EQ(peaks.base, 0);
  EXPECT_GT(peaks.held, 0);
}

// In the child of a fork; 0 is success.
int check_child(BudgetAllocator& allocator) {
  alarm(60); // a lock that nobody will ever release
  if (allocator.budget_bytes() != 0 || allocator.cached_bytes() != 0) {
    return 1;
  }
  const Bytes held = allocator.held_bytes();
  std::vector<c10::DataPtr> blocks;
  for (int i = 0; i < 200; ++i) {
    const Bytes size = i % 20 == 0 ? 32 * kMiB : 100 + i;
    blocks.push_back(allocator.allocate(size));
    static_cast<char*>(blocks.back().mutable_get())[size - 1] = 1;
  }
  blocks.clear();
  return allocator.held_bytes() == held && allocator.cached_bytes() == 0 ? 0 : 2;
}

TEST_F(BudgetAllocatorThreadsTest, AForkInTheMiddleOfAllocationsLeavesAWorkingChild) {
  ReclaimableBlocks reclaimable;
  allocator.set_budget(16 * kMiB, [&](Bytes) { return static_cast<bool>(reclaimable.take(0)); }, nullptr);
  c10::DataPtr inherited = allocator.allocate(kMiB);
  std::atomic<bool> done{false};
  int num_failed = 0;
  std::thread forker([&] {
    for (int i = 0; i < 300; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        inherited.clear();
        _exit(check_child(allocator));
      }
      int status = -1;
      waitpid(child, &status, 0);
      num_failed += status != 0;
    }
    done = true;
  });
  run_threads(3, [&](int thread) {
    std::mt19937 random(thread);
    while (!done) {
      try {
        reclaimable.put(allocator.allocate(random_size(random)));
      } catch (const c10::OutOfMemoryError&) {
        reclaimable.take(0);
      }
    }
  });
  forker.join();
  EXPECT_EQ(num_failed, 0);
  EXPECT_EQ(allocator.budget_bytes(), 16 * kMiB);
  while (reclaimable.take(0)) {
  }
}

} // namespace
} // namespace torchlms
