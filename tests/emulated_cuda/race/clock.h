// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace emulated_cuda::race {

// How much of each stream's work, by the stream's index, has happened before something.
using VectorClock = std::vector<uint64_t>;

inline void join(VectorClock& into, const VectorClock& other) {
  if (into.size() < other.size())
    into.resize(other.size(), 0);
  for (size_t i = 0; i < other.size(); i++)
    into[i] = std::max(into[i], other[i]);
}

inline uint64_t at(const VectorClock& clock, uint64_t stream) {
  return stream < clock.size() ? clock[stream] : 0;
}

} // namespace emulated_cuda::race
