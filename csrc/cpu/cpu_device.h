// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <utility>

#include "cpu/budget_allocator.h"
#include "cpu/system_memory.h"
#include "export.h"
#include "swap/device.h"

namespace torchlms {

// The CPU as a device: RAM, or the part of it that the process's cgroup allows, behind the
// BudgetAllocator. Thread-safe. Failure: as BudgetAllocator.
class CpuDevice final : public Device {
 public:
  explicit CpuDevice(SystemMemory memory = SystemMemory()) : memory_(std::move(memory)) {}

  c10::DeviceType type() const override;
  Bytes total_bytes() const override;
  Bytes available_bytes() const override;

  c10::Allocator* allocator() override;
  c10::DataPtr try_allocate(Bytes size) override;
  Block block_of(const void* data) const override;
  uint64_t next_serial() const override;

  Bytes held_bytes() const override;
  Bytes cached_bytes() const override;
  void add_managed_bytes(Bytes delta) override;
  Bytes managed_bytes() const override;
  Peaks take_peaks() override;

  void set_budget(Bytes budget, ReclaimFn reclaim, DescribeFn describe) override;
  void clear_budget() override;

 private:
  BudgetAllocator& allocator_ = BudgetAllocator::get();
  const SystemMemory memory_;
};

// Makes the CPU known to device_for(). Later calls do nothing.
TORCHLMS_EXPORT void register_cpu_device();

} // namespace torchlms
