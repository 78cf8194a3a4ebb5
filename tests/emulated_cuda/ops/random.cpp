// SPDX-License-Identifier: BSD-3-Clause
#include "random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

namespace emulated_cuda {

at::Generator draw(const std::optional<at::Generator>& generator, c10::DeviceIndex device) {
  at::Generator on_device =
      generator && generator->defined() ? *generator : at::cuda::detail::getDefaultCUDAGenerator(device);
  uint64_t seed = 0;
  uint64_t offset = 0;
  {
    std::lock_guard lock(on_device.mutex());
    const auto state = on_device.get<at::CUDAGeneratorImpl>()->philox_cuda_state(4);
    TORCH_CHECK(!state.captured_, "random numbers in a captured graph are not emulated");
    seed = state.seed_.val;
    offset = state.offset_.val;
  }
  return at::make_generator<at::CPUGeneratorImpl>(seed + offset * 0x9E3779B97F4A7C15u);
}

} // namespace emulated_cuda
