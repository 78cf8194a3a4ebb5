// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace torchlms {

// Of an even number the mean of the middle two. Puts the samples in another order. Requires: there are some.
inline double median(std::vector<double>& samples) {
  const auto middle = samples.begin() + static_cast<ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return samples.size() % 2 == 1 ? *middle : (*middle + *std::max_element(samples.begin(), middle)) / 2;
}

} // namespace torchlms
