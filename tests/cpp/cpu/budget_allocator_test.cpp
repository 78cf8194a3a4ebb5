// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/budget_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/Flags.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cpu/budgeted_memory.h"

C10_DECLARE_bool(caffe2_cpu_allocator_do_zero_fill);
C10_DECLARE_bool(caffe2_cpu_allocator_do_junk_fill);

namespace torchlms {
namespace {

constexpr Bytes kKiB = 1 << 10;
constexpr Bytes kMiB = 1 << 20;

Bytes resident_bytes() {
  Bytes total = 0;
  Bytes resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

bool nothing_left(Bytes) {
  return false;
}

class BudgetAllocatorTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    former = c10::GetCPUAllocator();
    BudgetAllocator::get().install();
  }
  void TearDown() override {
    allocator.clear_budget();
    EXPECT_EQ(allocator.held_bytes(), held_at_start);
    EXPECT_EQ(allocator.cached_bytes(), 0);
  }

  void allow(Bytes bytes, ReclaimFn reclaim = nothing_left, DescribeFn describe = nullptr) {
    allocator.set_budget(allocator.held_bytes() + bytes, std::move(reclaim), std::move(describe));
  }
  // Through PyTorch's front door.
  static c10::DataPtr allocate(Bytes size) {
    return c10::GetCPUAllocator()->allocate(static_cast<size_t>(size));
  }
  Bytes newly_held() const {
    return allocator.held_bytes() - held_at_start;
  }

  static c10::Allocator* former;
  BudgetAllocator& allocator = BudgetAllocator::get();
  const Bytes held_at_start = allocator.held_bytes();
};

c10::Allocator* BudgetAllocatorTest::former = nullptr;

TEST_F(BudgetAllocatorTest, SmallBlocksCountWhatWasAskedForAndLargeOnesWholePages) {
  for (const bool has_budget : {false, true}) {
    if (has_budget) {
      allow(kMiB);
    }
    const c10::DataPtr small = allocate(1001);
    EXPECT_EQ(newly_held(), 1001);
    const c10::DataPtr large = allocate(BudgetedMemory::kLargeBytes + 1);
    EXPECT_EQ(newly_held(), 1001 + BudgetedMemory::kLargeBytes + 4096);
    EXPECT_EQ(allocator.block_of(small.get()).bytes, 1001);
    EXPECT_EQ(allocator.block_of(large.get()).bytes, BudgetedMemory::kLargeBytes + 4096);
  }
}

TEST_F(BudgetAllocatorTest, BlocksAreAlignedAsPyTorchsAndLargeOnesToPagesUnderABudget) {
  EXPECT_EQ(reinterpret_cast<uintptr_t>(allocate(kMiB).get()) % 64, 0u);
  allow(10 * kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(allocate(100).get()) % 64, 0u);
  const c10::DataPtr first = allocate(kMiB + 1);
  const c10::DataPtr second = allocate(kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.get()) % 4096, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second.get()) % 4096, 0u);
}

TEST_F(BudgetAllocatorTest, AnEmptyBlockIsAsPyTorchs) {
  const c10::DataPtr theirs = former->allocate(0);
  const c10::DataPtr ours = allocate(0);
  EXPECT_EQ(ours.get(), theirs.get());
  EXPECT_EQ(ours.device(), theirs.device());
  allocator.raw_deallocate(nullptr);
}

TEST_F(BudgetAllocatorTest, NegativeSizesFailAsTheyDidBefore) {
  allow(kMiB);
  EXPECT_THROW(allocate(-1), c10::Error);
  EXPECT_THROW(former->allocate(static_cast<size_t>(-1)), c10::Error);
}

TEST_F(BudgetAllocatorTest, RawPointersGoRoundTrip) {
  for (const Bytes size : {Bytes{100}, kMiB}) {
    allow(kMiB);
    void* data = allocator.raw_allocate(size);
    std::memset(data, 1, size);
    EXPECT_EQ(newly_held(), size);
    allocator.raw_deallocate(data);
    EXPECT_EQ(newly_held(), 0);
  }
}

TEST_F(BudgetAllocatorTest, APointerThatItDoesNotKnowGoesToTheFormerAllocator) {
  allow(kMiB);
  void* data = former->raw_allocate(kMiB); // a leak checker sees whether it is freed
  allocator.raw_deallocate(data);
  EXPECT_EQ(newly_held(), 0);
  EXPECT_EQ(allocator.cached_bytes(), 0);
}

TEST_F(BudgetAllocatorTest, CloneCopies) {
  c10::DataPtr block = allocate(100);
  std::memset(block.mutable_get(), 7, 100);
  const c10::DataPtr copy = allocator.clone(block.get(), 100);
  EXPECT_EQ(std::memcmp(copy.get(), block.get(), 100), 0);
}

TEST_F(BudgetAllocatorTest, FreedLargeBlocksAreCachedAndReused) {
  allow(10 * kMiB);
  c10::DataPtr block = allocate(4 * kMiB);
  const void* data = block.get();
  block.clear();
  EXPECT_EQ(newly_held(), 0);
  EXPECT_EQ(allocator.cached_bytes(), 4 * kMiB);
  block = allocate(4 * kMiB);
  EXPECT_EQ(block.get(), data);
  EXPECT_EQ(allocator.cached_bytes(), 0);
}

TEST_F(BudgetAllocatorTest, ASplitBlockIsWholeAgainWhenItsPartsAreFreed) {
  allow(8 * kMiB);
  const void* whole = allocate(8 * kMiB).get();
  c10::DataPtr head = allocate(3 * kMiB);
  c10::DataPtr tail = allocate(5 * kMiB);
  EXPECT_EQ(head.get(), whole);
  EXPECT_EQ(tail.get(), static_cast<const char*>(whole) + 3 * kMiB);
  head.clear();
  tail.clear();
  EXPECT_EQ(allocate(8 * kMiB).get(), whole);
}

TEST_F(BudgetAllocatorTest, ScatteredFreeBlocksServeALargeOneWithoutReclaim) {
  allow(8 * kMiB, [](Bytes) -> bool { throw std::logic_error("nothing had to be reclaimed"); });
  std::vector<c10::DataPtr> blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(allocate(2 * kMiB));
  }
  blocks[0].clear();
  blocks[2].clear();
  const c10::DataPtr large = allocate(4 * kMiB);
  EXPECT_EQ(newly_held(), 8 * kMiB);
  EXPECT_EQ(allocator.reserved_bytes(), held_at_start + 8 * kMiB);
}

TEST_F(BudgetAllocatorTest, ASmallBlockTakesItsRoomFromTheCache) {
  allow(4 * kMiB);
  allocate(4 * kMiB).clear();
  const c10::DataPtr small = allocate(100);
  EXPECT_LT(allocator.cached_bytes(), 4 * kMiB);
  EXPECT_LE(allocator.reserved_bytes(), allocator.budget_bytes());
}

TEST_F(BudgetAllocatorTest, LoweringTheBudgetShrinksTheCache) {
  allow(8 * kMiB);
  allocate(8 * kMiB).clear();
  allow(2 * kMiB);
  EXPECT_EQ(allocator.cached_bytes(), 2 * kMiB);
}

TEST_F(BudgetAllocatorTest, ABlockFreedAboveTheBudgetIsCachedOnlyAsFarAsItFits) {
  allow(8 * kMiB);
  const c10::DataPtr stays = allocate(4 * kMiB);
  c10::DataPtr goes = allocate(2 * kMiB);
  allow(-kMiB);
  goes.clear();
  EXPECT_EQ(allocator.cached_bytes(), kMiB);
  EXPECT_EQ(allocator.reserved_bytes(), allocator.budget_bytes());
}

TEST_F(BudgetAllocatorTest, ABudgetOfNothingIsABudget) {
  allocator.set_budget(-kMiB, nothing_left, nullptr);
  EXPECT_THROW(allocate(100), c10::OutOfMemoryError);
  EXPECT_THROW(allocate(kMiB), c10::OutOfMemoryError);
}

TEST_F(BudgetAllocatorTest, ReclaimIsToldHowMuchIsMissing) {
  std::vector<Bytes> missing;
  allow(4 * kMiB, [&](Bytes needed) {
    missing.push_back(needed);
    return false;
  });
  const c10::DataPtr block = allocate(3 * kMiB);
  EXPECT_THROW(allocate(2 * kMiB), c10::OutOfMemoryError);
  EXPECT_EQ(missing, std::vector<Bytes>{kMiB});
}

TEST_F(BudgetAllocatorTest, AfterReclaimGaveUpOneLastAttemptSeesWhatOthersFreed) {
  c10::DataPtr of_another_thread;
  allow(kMiB, [&](Bytes) {
    of_another_thread.clear();
    return false;
  });
  of_another_thread = allocate(kMiB);
  EXPECT_NE(allocate(kMiB).get(), nullptr);
}

TEST_F(BudgetAllocatorTest, OutOfMemoryNamesTierBudgetRequestAndHeldBytes) {
  allow(kMiB, nothing_left, [](Bytes) { return "Make the batch smaller."; });
  const c10::DataPtr block = allocate(kMiB);
  std::string text;
  try {
    allocate(123456);
  } catch (const c10::OutOfMemoryError& error) {
    text = error.what_without_backtrace();
  }
  for (const std::string& part :
       {std::string("out of memory."),
        std::string("DefaultCPUAllocator: can't allocate memory"),
        std::string("Tier: device"),
        "budget: " + std::to_string(allocator.budget_bytes()),
        "held: " + std::to_string(allocator.held_bytes()),
        std::string("123456 bytes")}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
  EXPECT_TRUE(text.ends_with("Make the batch smaller.")) << text;
}

TEST_F(BudgetAllocatorTest, MappedBlocksAreFilledAsTheFlagsSay) {
  allow(kMiB);
  const auto allocate_dirty = [] {
    c10::DataPtr block = allocate(kMiB);
    std::memset(block.mutable_get(), 1, kMiB);
    block.clear();
    return allocate(kMiB - 4);
  };
  FLAGS_caffe2_cpu_allocator_do_zero_fill = true;
  c10::DataPtr block = allocate_dirty();
  const auto* bytes = static_cast<const char*>(block.get());
  EXPECT_EQ(std::count(bytes, bytes + kMiB - 4, 0), kMiB - 4);
  FLAGS_caffe2_cpu_allocator_do_zero_fill = false;
  block.clear();

  FLAGS_caffe2_cpu_allocator_do_junk_fill = true;
  block = allocate_dirty();
  const c10::DataPtr theirs = former->allocate(kMiB - 4);
  EXPECT_EQ(std::memcmp(block.get(), theirs.get(), kMiB - 4), 0);
  FLAGS_caffe2_cpu_allocator_do_junk_fill = false;
}

class Profiler : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* data, int64_t size, size_t, size_t, c10::Device) override {
    sizes[data] += size;
  }
  void reportOutOfMemory(int64_t size, size_t, size_t, c10::Device) override {
    refused = size;
  }
  bool memoryProfilingEnabled() const override {
    return true;
  }
  std::map<void*, int64_t> sizes;
  int64_t refused = 0;
};

TEST_F(BudgetAllocatorTest, TheProfilerSeesEveryBlockOnce) {
  const auto profiler = std::make_shared<Profiler>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, profiler);
  for (const bool has_budget : {false, true}) {
    if (has_budget) {
      allow(2 * kMiB);
    }
    for (const Bytes size : {Bytes{100}, kMiB + 1}) {
      c10::DataPtr block = allocate(size);
      EXPECT_EQ(profiler->sizes[block.get()], size);
      void* const data = block.get();
      block.clear();
      EXPECT_EQ(profiler->sizes[data], 0);
    }
  }
  EXPECT_THROW(allocate(3 * kMiB), c10::OutOfMemoryError);
  EXPECT_EQ(profiler->refused, 3 * kMiB);
}

TEST_F(BudgetAllocatorTest, ResidentMemoryFollowsTheCount) {
  constexpr Bytes kBudget = 256 * kMiB;
  const Bytes at_start = resident_bytes();
  allow(kBudget);
  std::mt19937 random(3);
  std::deque<c10::DataPtr> blocks;
  const auto newly_reserved = [&] { return allocator.reserved_bytes() - held_at_start; };
  for (int i = 0; i < 400; ++i) {
    const Bytes size = 100 * kKiB + random() % (30 * kMiB);
    while (newly_held() + size + 4096 > kBudget) {
      blocks.erase(blocks.begin() + random() % blocks.size());
    }
    blocks.push_back(allocate(size));
    std::memset(blocks.back().mutable_get(), 1, size);
    ASSERT_LE(resident_bytes() - at_start, newly_reserved() * 115 / 100 + 2 * kMiB);
  }
  EXPECT_GT(resident_bytes() - at_start, kBudget / 2);
  blocks.clear();
  EXPECT_GT(allocator.cached_bytes(), kBudget / 2);
  allocator.trim();
  EXPECT_EQ(allocator.cached_bytes(), 0);
  EXPECT_LE(resident_bytes() - at_start, kBudget / 20);
}

TEST_F(BudgetAllocatorTest, ClearingTheBudgetGivesTheCacheBack) {
  allow(64 * kMiB);
  const Bytes at_start = resident_bytes();
  c10::DataPtr stays = allocate(kMiB);
  c10::DataPtr block = allocate(60 * kMiB);
  std::memset(block.mutable_get(), 1, 60 * kMiB);
  block.clear();
  allocator.clear_budget();
  EXPECT_EQ(allocator.cached_bytes(), 0);
  EXPECT_LE(resident_bytes() - at_start, 4 * kMiB);
  EXPECT_EQ(newly_held(), kMiB);
  stays.clear(); // a mapping from the time of the budget
  EXPECT_EQ(allocator.cached_bytes(), 0);
}

} // namespace
} // namespace torchlms
