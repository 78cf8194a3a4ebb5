// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "site.h"

namespace emulated_cuda::race {

struct Finding {
  std::string what; // one line
  std::shared_ptr<const Site> now;
  std::shared_ptr<const Site> before; // null: there is none
};

// Prints a finding, with both call sites, and counts it; one like an earlier one is only counted.
void report(const Finding& finding);

} // namespace emulated_cuda::race
