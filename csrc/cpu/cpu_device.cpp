// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/cpu_device.h"

#include <utility>

namespace torchlms {

c10::DeviceType CpuDevice::type() const {
  return c10::DeviceType::CPU;
}

Bytes CpuDevice::total_bytes() const {
  return memory_.total_bytes();
}

Bytes CpuDevice::available_bytes() const {
  return memory_.available_bytes() + allocator_.cached_bytes();
}

c10::Allocator* CpuDevice::allocator() {
  return &allocator_;
}

c10::DataPtr CpuDevice::try_allocate(Bytes size) {
  return allocator_.try_allocate(size);
}

Device::Block CpuDevice::block_of(const void* data) const {
  return allocator_.block_of(data);
}

uint64_t CpuDevice::next_serial() const {
  return allocator_.next_serial();
}

Bytes CpuDevice::held_bytes() const {
  return allocator_.held_bytes();
}

Bytes CpuDevice::cached_bytes() const {
  return allocator_.cached_bytes();
}

void CpuDevice::add_managed_bytes(Bytes delta) {
  allocator_.add_managed_bytes(delta);
}

Bytes CpuDevice::managed_bytes() const {
  return allocator_.managed_bytes();
}

Device::Peaks CpuDevice::take_peaks() {
  return allocator_.take_peaks();
}

void CpuDevice::set_budget(Bytes budget, ReclaimFn reclaim, DescribeFn describe) {
  allocator_.set_budget(budget, std::move(reclaim), std::move(describe));
}

void CpuDevice::clear_budget() {
  allocator_.clear_budget();
}

void register_cpu_device() {
  static const bool once = [] {
    register_device(new CpuDevice); // never destroyed, as every device
    return true;
  }();
  static_cast<void>(once);
}

} // namespace torchlms
