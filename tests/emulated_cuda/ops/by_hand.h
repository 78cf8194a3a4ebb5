// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/library.h>

#include <string>

namespace emulated_cuda {

// Operators that the general kernel cannot do: those with no CPU kernel, and those whose CPU kernel would
// draw from the CPU's generator.
bool is_by_hand(const std::string& name);
void install_by_hand(torch::Library& library);

void install_copy(torch::Library& library);
void install_cells(torch::Library& library);
void install_dropout(torch::Library& library);

} // namespace emulated_cuda
