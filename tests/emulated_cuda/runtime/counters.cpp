// SPDX-License-Identifier: BSD-3-Clause
#include "counters.h"

#include <cstdio>
#include <cstring>

#include "link.h"

namespace emulated_cuda {

Counters& counters() {
  static auto& counters = *new Counters;
  return counters;
}

void grow(std::atomic<uint64_t>& level, std::atomic<uint64_t>& peak, uint64_t bytes) {
  const uint64_t now = level += bytes;
  uint64_t seen = peak;
  while (seen < now && !peak.compare_exchange_weak(seen, now)) {
  }
}

} // namespace emulated_cuda

// UINT64_MAX for a name that is none.
extern "C" __attribute__((visibility("default"))) uint64_t emulated_cuda_counter(const char* name) {
  using namespace emulated_cuda;
  auto& c = counters();
#define COUNTER(field)                \
  if (std::strcmp(name, #field) == 0) \
    return c.field;
  COUNTER(device_bytes)
  COUNTER(device_peak_bytes)
  COUNTER(device_allocations)
  COUNTER(pinned_bytes)
  COUNTER(pinned_peak_bytes)
  COUNTER(pinned_allocations)
  COUNTER(h2d_bytes)
  COUNTER(h2d_copies)
  COUNTER(d2h_bytes)
  COUNTER(d2h_copies)
  COUNTER(d2d_bytes)
  COUNTER(d2d_copies)
  COUNTER(ops)
  COUNTER(races)
  COUNTER(waiting_ops)
#undef COUNTER
  if (std::strcmp(name, "h2d_busy_ns") == 0)
    return busy_ns(Direction::kToDevice);
  if (std::strcmp(name, "d2h_busy_ns") == 0)
    return busy_ns(Direction::kToHost);
  return UINT64_MAX;
}

extern "C" __attribute__((visibility("default"))) void emulated_cuda_reset_peaks() {
  auto& c = emulated_cuda::counters();
  c.device_peak_bytes = c.device_bytes.load();
  c.pinned_peak_bytes = c.pinned_bytes.load();
}
