// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/cuda_device.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <thread>

#include "swap/device_contract.h"

// Needs a GPU, or the emulated one: tests/emulated_cuda/run PROGRAM.
namespace torchlms {
namespace {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

constexpr Bytes kMiB = Bytes{1} << 20;

Device& cuda_device() {
  return device_for({c10::DeviceType::CUDA, 0});
}

CUDAAllocator* allocator_in_place() {
  return c10::cuda::CUDACachingAllocator::get();
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceContract, ::testing::Values(&cuda_device));

class CudaDeviceTest : public ::testing::Test {
 protected:
  void TearDown() override {
    device.clear_budget();
    allocator_in_place()->emptyCache({0, 0});
  }
  Bytes reserved() {
    return CachingAllocator::get().reserved_bytes(0);
  }

  Device& device = cuda_device();
};

TEST_F(CudaDeviceTest, ADeviceThatIsNotThereIsNotFound) {
  EXPECT_EQ(find_device({c10::DeviceType::CUDA, 63}), nullptr);
  EXPECT_THROW(device_for({c10::DeviceType::CUDA, 63}), c10::Error);
}

TEST_F(CudaDeviceTest, TheAllocatorIsInPlaceOnlyWhileThereIsABudget) {
  CUDAAllocator* native = allocator_in_place();
  EXPECT_NE(native, device.allocator());
  device.set_budget(100 * kMiB, nullptr, nullptr);
  EXPECT_EQ(allocator_in_place(), device.allocator());
  EXPECT_EQ(c10::GetAllocator(c10::DeviceType::CUDA), device.allocator());
  device.clear_budget();
  EXPECT_EQ(allocator_in_place(), native);
  EXPECT_EQ(c10::GetAllocator(c10::DeviceType::CUDA), native);
}

TEST_F(CudaDeviceTest, TheMemoryFractionOfTheProgramComesBackWithTheEndOfTheBudget) {
  allocator_in_place()->setMemoryFraction(0.75, 0);
  device.set_budget(100 * kMiB, nullptr, nullptr);
  device.clear_budget();
  EXPECT_NEAR(allocator_in_place()->getMemoryFraction(0), 0.75, 1e-6);
  allocator_in_place()->setMemoryFraction(1.0, 0);
}

TEST_F(CudaDeviceTest, ReservedMemoryStaysWithinTheBudgetWhateverTheSizes) {
  const Bytes budget = 120 * kMiB;
  std::vector<c10::DataPtr> blocks;
  device.set_budget(
      budget,
      [&](Bytes) {
        if (blocks.empty()) {
          return false;
        }
        blocks.erase(blocks.begin());
        return true;
      },
      nullptr);
  for (int i = 1; i < 200; ++i) {
    blocks.push_back(device.allocate(i * 7919 % 9 * kMiB + 1 + i * 512));
    EXPECT_LE(reserved(), budget);
  }
}

TEST_F(CudaDeviceTest, FragmentedMemoryIsReclaimedUntilTheBlockFits) {
  std::vector<c10::DataPtr> blocks;
  device.set_budget(
      80 * kMiB,
      [&](Bytes) {
        if (blocks.empty()) {
          return false;
        }
        blocks.pop_back();
        return true;
      },
      nullptr);
  for (int i = 0; i < 16; ++i) {
    blocks.push_back(device.allocate(5 * kMiB)); // four to a segment of 20 MiB
  }
  for (const int place : {14, 10, 6, 2}) {
    blocks.erase(blocks.begin() + place); // 20 MiB are free, and nowhere more than 5 together
  }
  const c10::DataPtr large = device.allocate(20 * kMiB);
  EXPECT_NE(large.get(), nullptr);
  EXPECT_LE(reserved(), 80 * kMiB);
  EXPECT_GT(device.wasted_bytes(), 0);
}

TEST_F(CudaDeviceTest, BlocksMadeBeforeTheFirstBudgetAreKnown) {
  const c10::DataPtr older = allocator_in_place()->allocate(3 * kMiB);
  EXPECT_EQ(device.block_of(older.get()).bytes, 3 * kMiB);
}

TEST_F(CudaDeviceTest, BytesComeBackAsTheyWent) {
  constexpr Bytes kSize = 3 * kMiB + 17;
  std::vector<char> bytes(kSize);
  for (Bytes i = 0; i < kSize; ++i) {
    bytes[i] = static_cast<char>(i * 31 + i / 255);
  }
  const c10::DataPtr block = device.allocate(kSize);
  device.copy_in(block.get(), bytes.data(), kSize);
  std::vector<char> back(kSize);
  device.copy_out(back.data(), block.get(), kSize);
  EXPECT_EQ(back, bytes);
}

TEST_F(CudaDeviceTest, AFenceWaitsForTheStreamThatIsCurrentAndForThatOfTheBlock) {
  const auto side = c10::cuda::getStreamFromPool();
  constexpr Bytes kSize = 64 * kMiB;
  const c10::DataPtr block = device.allocate(kSize);
  cudaEvent_t written = nullptr;
  C10_CUDA_CHECK(cudaEventCreateWithFlags(&written, cudaEventDisableTiming));
  {
    const c10::cuda::CUDAStreamGuard guard(side);
    C10_CUDA_CHECK(cudaMemsetAsync(block.get(), 7, kSize, side.stream()));
    C10_CUDA_CHECK(cudaEventRecord(written, side.stream()));
    device.note_use(block.get());
  }
  device.fence(block.get())->wait(); // taken with another stream current
  EXPECT_EQ(cudaEventQuery(written), cudaSuccess);
  C10_CUDA_CHECK(cudaEventDestroy(written));
}

TEST_F(CudaDeviceTest, ASharedBlockIsNotReusedBeforeTheOtherStreamIsDoneWithIt) {
  c10::DataPtr block = device.allocate(32 * kMiB);
  const void* address = block.get();
  const auto side = c10::cuda::getStreamFromPool();
  {
    const c10::cuda::CUDAStreamGuard guard(side);
    C10_CUDA_CHECK(cudaMemsetAsync(block.mutable_get(), 1, 32 * kMiB, side.stream()));
    device.share(block);
    // More work than is done by the time the block is freed.
    for (int i = 0; i < 50; ++i) {
      C10_CUDA_CHECK(cudaMemsetAsync(block.mutable_get(), i, 32 * kMiB, side.stream()));
    }
  }
  const bool was_busy = !side.query();
  block.clear();
  const c10::DataPtr next = device.allocate(32 * kMiB);
  EXPECT_TRUE(next.get() != address || !was_busy || side.query());
  side.synchronize();
}

TEST_F(CudaDeviceTest, MomentsAreInTheOrderOfTheStream) {
  const MomentPtr first = device.moment();
  const c10::DataPtr block = device.allocate(16 * kMiB);
  C10_CUDA_CHECK(cudaMemsetAsync(block.get(), 1, 16 * kMiB, c10::cuda::getCurrentCUDAStream().stream()));
  const MomentPtr second = device.moment();
  EXPECT_GE(second->us_since(*first), 0);
  EXPECT_LE(first->us_since(*second), 0);
}

TEST_F(CudaDeviceTest, ManyThreadsStayWithinTheBudget) {
  device.set_budget(100 * kMiB, [](Bytes) { return true; }, nullptr);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        const c10::DataPtr block = device.allocate(20 * kMiB);
        EXPECT_LE(reserved(), 100 * kMiB);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

} // namespace
} // namespace torchlms
