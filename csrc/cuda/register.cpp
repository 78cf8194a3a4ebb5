// SPDX-License-Identifier: BSD-3-Clause
// Makes this machine's GPUs known when the library is loaded.
#include "cuda/cuda_device.h"

namespace torchlms {

namespace {

[[maybe_unused]] const bool is_registered = [] {
  register_devices(c10::DeviceType::CUDA, &CudaDevice::find);
  return true;
}();

} // namespace

} // namespace torchlms
