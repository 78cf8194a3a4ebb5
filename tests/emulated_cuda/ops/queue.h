// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace emulated_cuda {

// What an operator reads and writes, for the race detector and for its time.
struct Footprint {
  std::vector<at::Tensor> reads;
  std::vector<at::Tensor> writes;
  double flops = 0; // that count, see flops.h
};

// Queues `compute` on the current stream of `device`. It runs with no autograd and unobserved. An error
// in it breaks the device.
void enqueue(
    c10::DeviceIndex device,
    const std::string& name,
    const Footprint& footprint,
    std::function<void()> compute);

// The same, and waits for it; an error in it is the caller's.
void enqueue_and_wait(
    c10::DeviceIndex device,
    const std::string& name,
    const Footprint& footprint,
    std::function<void()> compute);

at::Tensor empty_on(c10::DeviceIndex device, const at::Tensor& like);

} // namespace emulated_cuda
