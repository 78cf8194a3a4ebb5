// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace emulated_cuda::race {

// Who queued a piece of work, and from where.
struct Site {
  std::string work;
  uint64_t stream = 0;
  std::vector<void*> frames;
  std::string python; // the Python stack, if one was asked for
};

// The calling thread's stack. The Python one costs, so it is taken only with EMULATED_CUDA_PYTHON_SITES=1.
std::shared_ptr<const Site> site_here(std::string work, uint64_t stream);

std::string describe(const Site& site);
std::string python_stack();

} // namespace emulated_cuda::race
