// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Generator.h>

namespace emulated_cuda {

// A CPU generator for one call, seeded from the state of the device's generator (the default one if
// `generator` is undefined), which moves on as it does on a real device: setting the state of a CUDA
// generator repeats its numbers. The first call after a seed equals the CPU's with that seed.
at::Generator draw(const std::optional<at::Generator>& generator, c10::DeviceIndex device);

} // namespace emulated_cuda
