// SPDX-License-Identifier: BSD-3-Clause
#include "swap/device.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <cstring>

namespace torchlms {

namespace {

using FindFn = Device* (*)(c10::DeviceIndex);

// Constant-initialized, because devices may be registered by static initializers.
std::array<std::atomic<Device*>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> only_devices{};
std::array<std::atomic<FindFn>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> finders{};

} // namespace

void Device::copy_out(void* host, const void* block, Bytes size) {
  std::memcpy(host, block, static_cast<size_t>(size));
}

void Device::copy_in(void* block, const void* host, Bytes size) {
  std::memcpy(block, host, static_cast<size_t>(size));
}

Device* find_device(c10::Device device) {
  const auto type = static_cast<size_t>(device.type());
  if (Device* only = only_devices.at(type).load()) {
    return only;
  }
  const FindFn find = finders.at(type).load();
  return find ? find(device.has_index() ? device.index() : c10::DeviceIndex{0}) : nullptr;
}

Device& device_for(c10::Device device) {
  Device* found = find_device(device);
  const bool is_known_type = finders.at(static_cast<size_t>(device.type())).load() != nullptr;
  TORCH_CHECK(
      found != nullptr,
      is_known_type ? "torchlms: there is no device " : "This build of torchlms has no support for ",
      device,
      is_known_type ? "." : " devices.");
  return *found;
}

void register_devices(c10::DeviceType type, FindFn find) {
  FindFn expected = nullptr;
  const bool is_first = finders.at(static_cast<size_t>(type)).compare_exchange_strong(expected, find);
  TORCH_INTERNAL_ASSERT(is_first, "Devices of type ", type, " were registered twice.");
}

void register_device(Device* device) {
  Device* expected = nullptr;
  const bool is_first =
      only_devices.at(static_cast<size_t>(device->type())).compare_exchange_strong(expected, device);
  TORCH_INTERNAL_ASSERT(is_first, "A second device of type ", device->type(), " was registered.");
}

} // namespace torchlms
