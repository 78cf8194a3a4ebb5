// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace emulated_cuda {

// Loads the library of operators once PyTorch's CUDA library is in the process. Called before anybody
// knows that there is a device, so that no operator can have run on it yet.
void load_operators();

// Lets the operators' library watch PyTorch's caching allocator. Called under that allocator's own lock,
// before its first block exists.
void observe_caching_allocator();

} // namespace emulated_cuda
