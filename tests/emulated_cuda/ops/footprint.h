// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "queue.h"
#include "runtime/stream.h"

namespace emulated_cuda {

// The bytes behind the tensors, as runs of contiguous ones.
std::vector<Access> accesses_of(const Footprint& footprint);

// Those bytes, each element once.
uint64_t bytes_of(const Footprint& footprint);

} // namespace emulated_cuda
