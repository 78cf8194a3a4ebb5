// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>

namespace emulated_cuda {

// What the emulated devices did, all together. Read by name through emulated_cuda_counter().
struct Counters {
  std::atomic<uint64_t> device_bytes{0}, device_peak_bytes{0}, device_allocations{0};
  std::atomic<uint64_t> pinned_bytes{0}, pinned_peak_bytes{0}, pinned_allocations{0};
  std::atomic<uint64_t> h2d_bytes{0}, h2d_copies{0}, d2h_bytes{0}, d2h_copies{0}, d2d_bytes{0}, d2d_copies{0};
  std::atomic<uint64_t> ops{0}, races{0};
  std::atomic<uint64_t> waiting_ops{0}; // called, and waited for as no real operator would be
};

Counters& counters();

// Adds to a level and raises its peak.
void grow(std::atomic<uint64_t>& level, std::atomic<uint64_t>& peak, uint64_t bytes);

} // namespace emulated_cuda
