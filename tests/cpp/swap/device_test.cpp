// SPDX-License-Identifier: BSD-3-Clause
#include "swap/device.h"

#include "swap/device_contract.h"
#include "swap/fake_device.h"

namespace torchlms {
namespace {

Device& fake_device() {
  static FakeDevice* const device = [] {
    auto* made = new FakeDevice; // never destroyed, as every device
    register_device(made);
    return made;
  }();
  return *device;
}

INSTANTIATE_TEST_SUITE_P(Fake, DeviceContract, ::testing::Values(&fake_device));

} // namespace
} // namespace torchlms
