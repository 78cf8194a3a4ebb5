// SPDX-License-Identifier: BSD-3-Clause
#include "swap/device.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>

namespace torchlms {

namespace {

// Constant-initialized, because devices may be registered by static initializers.
std::array<std::atomic<Device*>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> devices{};

} // namespace

Device& device_for(c10::DeviceType type) {
  Device* device = devices.at(static_cast<size_t>(type)).load();
  TORCH_CHECK(device != nullptr, "This build of torchlms has no support for ", type, " devices.");
  return *device;
}

void register_device(Device* device) {
  Device* expected = nullptr;
  const bool is_first =
      devices.at(static_cast<size_t>(device->type())).compare_exchange_strong(expected, device);
  TORCH_INTERNAL_ASSERT(is_first, "A second device of type ", device->type(), " was registered.");
}

} // namespace torchlms
