// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace emulated_cuda {

// The `first`-th call of `function`, counted from 1, fails; if `lasting`, so do all that follow.
struct InjectedFailure {
  std::string function;
  uint64_t first = 0;
  bool lasting = false;
};

// What the environment asks of the emulated device: EMULATED_CUDA_<NAME>, see README.md.
struct Knobs {
  uint64_t device_bytes = uint64_t{4} << 30;
  uint64_t pinned_bytes = UINT64_MAX;
  double h2d_bytes_per_s = 0; // 0: as fast as memcpy
  double d2h_bytes_per_s = 0;
  double slowdown = 1;
  double flops_per_s = 0; // 0: operators take the time that they take here
  double memory_bytes_per_s = 0; // the same
  bool compute = true; // false: operators leave their outputs as they are
  int devices = 1;
  uint64_t seed = 0;
  uint64_t delay_us = 0; // the longest random delay before a piece of work; 0: none
  bool race = false;
  std::vector<InjectedFailure> failures;
  uint64_t failures_version = 0; // calls are counted anew whenever it changes
  uint64_t seed_version = 0;
};

const Knobs& knobs();

} // namespace emulated_cuda
