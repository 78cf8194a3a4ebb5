// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/stack.h>

#include <string>

#include "queue.h"

namespace emulated_cuda {

// Multiplications and additions of matrix products and convolutions; 0 for all else, which memory bounds.
double flops_of(const std::string& name, const torch::jit::Stack& arguments, const Footprint& footprint);

} // namespace emulated_cuda
