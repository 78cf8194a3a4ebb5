// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/cpu_device.h"

#include <c10/core/CPUAllocator.h>

#include <filesystem>
#include <fstream>

#include "swap/device_contract.h"

namespace torchlms {
namespace {

Device& cpu_device() {
  register_cpu_device();
  return device_for(c10::DeviceType::CPU);
}

INSTANTIATE_TEST_SUITE_P(Cpu, DeviceContract, ::testing::Values(&cpu_device));

TEST(CpuDeviceTest, IsTheOnlyDeviceUntilAnotherIsRegistered) {
  EXPECT_THROW(device_for(c10::DeviceType::CUDA), c10::Error);
}

TEST(CpuDeviceTest, RegisteringAgainKeepsTheDevice) {
  Device& device = cpu_device();
  register_cpu_device();
  EXPECT_EQ(&cpu_device(), &device);
}

TEST(CpuDeviceTest, InstallingMakesItsAllocatorTheOneOfTensors) {
  BudgetAllocator::get().install();
  BudgetAllocator::get().install();
  EXPECT_EQ(c10::GetCPUAllocator(), cpu_device().allocator());
}

TEST(CpuDeviceTest, AvailableBytesCountTheCache) {
  const std::filesystem::path root = std::filesystem::path(::testing::TempDir()) / "made_up_system";
  std::filesystem::create_directories(root / "proc");
  std::ofstream(root / "proc/meminfo") << "MemTotal: 2000 kB\nMemAvailable: 1000 kB\n";
  CpuDevice device{SystemMemory(root)};

  constexpr Bytes kSize = 1 << 20;
  device.set_budget(device.held_bytes() + kSize, nullptr, nullptr);
  c10::DataPtr block = device.allocator()->allocate(kSize);
  EXPECT_EQ(device.available_bytes(), 1000 * 1024);
  block.clear();
  EXPECT_EQ(device.available_bytes(), 1000 * 1024 + kSize);

  device.clear_budget();
  std::filesystem::remove_all(root);
}

} // namespace
} // namespace torchlms
