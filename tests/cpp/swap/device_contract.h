// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "swap/device.h"

// What every Device promises, written once. A device's own test instantiates it:
//   INSTANTIATE_TEST_SUITE_P(Cpu, DeviceContract, ::testing::Values(&cpu_device));
// Blocks are never dereferenced, since they may be on a GPU.
namespace torchlms {

class DeviceContract : public ::testing::TestWithParam<Device& (*)()> {
 protected:
  // As large as the segments that CUDA's caching allocator makes, so that nothing is rounded.
  static constexpr Bytes kBlock = 20 << 20;

  void TearDown() override {
    device.clear_budget();
    EXPECT_EQ(device.held_bytes(), held_at_start);
    EXPECT_EQ(device.managed_bytes(), managed_at_start);
  }

  c10::DataPtr allocate(Bytes size) {
    return device.allocator()->allocate(static_cast<size_t>(size));
  }
  void allow_blocks(int num_blocks, ReclaimFn reclaim = nullptr, DescribeFn describe = nullptr) {
    device.set_budget(device.held_bytes() + num_blocks * kBlock, std::move(reclaim), std::move(describe));
  }
  std::string error_of_one_block_too_many() {
    try {
      allocate(kBlock);
    } catch (const c10::OutOfMemoryError& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  }

  Device& device = GetParam()();
  const Bytes held_at_start = device.held_bytes();
  const Bytes managed_at_start = device.managed_bytes();
};

TEST_P(DeviceContract, IsFoundByItsType) {
  EXPECT_EQ(&device_for(device.type()), &device);
}

TEST_P(DeviceContract, HasMemoryAndNoMoreAvailableThanInTotal) {
  EXPECT_GT(device.available_bytes(), 0);
  EXPECT_GE(device.total_bytes(), device.available_bytes());
}

TEST_P(DeviceContract, BlocksAreOnTheDeviceAndTheirContextIsTheirData) {
  const c10::DataPtr block = allocate(1000);
  EXPECT_EQ(block.device().type(), device.type());
  EXPECT_EQ(block.get(), block.get_context());
  EXPECT_EQ(block.get_deleter(), device.allocator()->raw_deleter());
}

TEST_P(DeviceContract, HeldRisesByWhatABlockHoldsAndFallsWithIt) {
  for (const Bytes size : {Bytes{1}, Bytes{1000}, Bytes{100000}, kBlock + 1}) {
    c10::DataPtr block = allocate(size);
    const Bytes block_bytes = device.block_of(block.get()).bytes;
    EXPECT_GE(block_bytes, size);
    EXPECT_EQ(device.held_bytes(), held_at_start + block_bytes);
    block.clear();
    EXPECT_EQ(device.held_bytes(), held_at_start);
  }
}

TEST_P(DeviceContract, AnEmptyBlockIsNullAndHoldsNothing) {
  const c10::DataPtr block = allocate(0);
  EXPECT_EQ(block.get(), nullptr);
  EXPECT_EQ(device.held_bytes(), held_at_start);
}

TEST_P(DeviceContract, KnowsNothingOfMemoryFromElsewhere) {
  const int elsewhere = 0;
  EXPECT_EQ(device.block_of(&elsewhere).bytes, 0);
  EXPECT_EQ(device.block_of(nullptr).bytes, 0);
}

TEST_P(DeviceContract, SerialsTellTheOrderOfAllocations) {
  const c10::DataPtr before = allocate(1000);
  const uint64_t next = device.next_serial();
  const c10::DataPtr after = allocate(1000);
  EXPECT_LT(device.block_of(before.get()).serial, next);
  EXPECT_GE(device.block_of(after.get()).serial, next);
}

TEST_P(DeviceContract, TryAllocateDeclinesBeyondTheBudgetWithoutReclaiming) {
  bool reclaimed = false;
  allow_blocks(1, [&](Bytes) {
    reclaimed = true;
    return false;
  });
  const c10::DataPtr fits = device.try_allocate(kBlock);
  EXPECT_NE(fits.get(), nullptr);
  const c10::DataPtr does_not_fit = device.try_allocate(kBlock);
  EXPECT_EQ(does_not_fit.get(), nullptr);
  EXPECT_FALSE(reclaimed);
}

TEST_P(DeviceContract, ReclaimsUntilTheAllocationFits) {
  std::vector<c10::DataPtr> reclaimable;
  allow_blocks(3, [&](Bytes needed) {
    EXPECT_GT(needed, 0);
    EXPECT_LE(needed, 2 * kBlock);
    reclaimable.pop_back();
    return true;
  });
  for (int i = 0; i < 3; ++i) {
    reclaimable.push_back(allocate(kBlock));
  }
  const c10::DataPtr block = allocate(2 * kBlock);
  EXPECT_EQ(reclaimable.size(), 1u);
}

TEST_P(DeviceContract, OutOfMemorySaysSoAndEndsWithTheDescription) {
  allow_blocks(
      1,
      [](Bytes) { return false; },
      [](Bytes requested) { return "Asked for " + std::to_string(requested) + "."; });
  const c10::DataPtr block = allocate(kBlock);
  const std::string text = error_of_one_block_too_many();
  EXPECT_NE(text.find("out of memory."), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("Asked for " + std::to_string(kBlock) + ".")) << text;
}

TEST_P(DeviceContract, TheDescriptionMayThrowInstead) {
  allow_blocks(
      1,
      [](Bytes) { return false; },
      [](Bytes) -> std::string { throw std::runtime_error("the disk is full"); });
  const c10::DataPtr block = allocate(kBlock);
  EXPECT_THROW(allocate(kBlock), std::runtime_error);
}

TEST_P(DeviceContract, AFailedAllocationHoldsNothing) {
  allow_blocks(1, [](Bytes) { return false; });
  EXPECT_THROW(allocate(2 * kBlock), c10::OutOfMemoryError);
  EXPECT_EQ(device.held_bytes(), held_at_start);
}

TEST_P(DeviceContract, ReclaimIsNotEnteredAgainByWhatItAllocates) {
  int depth = 0;
  int deepest = 0;
  allow_blocks(1, [&](Bytes) {
    deepest = std::max(deepest, ++depth);
    EXPECT_THROW(allocate(kBlock), c10::OutOfMemoryError);
    --depth;
    return false;
  });
  const c10::DataPtr block = allocate(kBlock);
  EXPECT_THROW(allocate(kBlock), c10::OutOfMemoryError);
  EXPECT_EQ(deepest, 1);
}

TEST_P(DeviceContract, ABudgetBelowWhatIsHeldBoundsLaterAllocationsOnly) {
  c10::DataPtr first = allocate(kBlock);
  c10::DataPtr second = allocate(kBlock);
  allow_blocks(-1, [](Bytes) { return false; });
  EXPECT_THROW(allocate(kBlock), c10::OutOfMemoryError);
  first.clear();
  EXPECT_THROW(allocate(kBlock), c10::OutOfMemoryError);
  second.clear();
  EXPECT_NE(allocate(kBlock).get(), nullptr);
}

TEST_P(DeviceContract, CountingGoesOnWhenTheBudgetIsCleared) {
  allow_blocks(1, [](Bytes) { return false; });
  const c10::DataPtr within = allocate(kBlock);
  device.clear_budget();
  const c10::DataPtr beyond = allocate(kBlock);
  EXPECT_EQ(device.held_bytes(), held_at_start + 2 * kBlock);
}

TEST_P(DeviceContract, ReclaimMayClearTheBudgetItself) {
  allow_blocks(1, [this, owned = std::make_shared<std::string>("alive")](Bytes) {
    device.clear_budget();
    EXPECT_EQ(*owned, "alive");
    return true;
  });
  const c10::DataPtr first = allocate(kBlock);
  EXPECT_NE(allocate(kBlock).get(), nullptr);
}

TEST_P(DeviceContract, PeaksAreTheHighestSinceTheLastCall) {
  device.take_peaks();
  c10::DataPtr stays = allocate(kBlock);
  allocate(2 * kBlock).clear();
  const Device::Peaks peaks = device.take_peaks();
  EXPECT_EQ(peaks.held, held_at_start + 3 * kBlock);
  EXPECT_EQ(device.take_peaks().held, held_at_start + kBlock);
}

TEST_P(DeviceContract, ManagedBlocksMakeNoPeakOfTheBase) {
  device.take_peaks();
  device.add_managed_bytes(kBlock);
  c10::DataPtr managed = allocate(kBlock);
  EXPECT_EQ(device.managed_bytes(), managed_at_start + kBlock);
  managed.clear();
  device.add_managed_bytes(-kBlock);
  const Device::Peaks peaks = device.take_peaks();
  EXPECT_EQ(peaks.held, held_at_start + kBlock);
  EXPECT_EQ(peaks.base, held_at_start - managed_at_start);
}

TEST_P(DeviceContract, ABlockThatIsNoLongerManagedCountsInTheBaseAgain) {
  const c10::DataPtr block = allocate(kBlock);
  device.add_managed_bytes(kBlock);
  device.take_peaks();
  device.add_managed_bytes(-kBlock);
  EXPECT_EQ(device.take_peaks().base, held_at_start - managed_at_start + kBlock);
}

} // namespace torchlms
