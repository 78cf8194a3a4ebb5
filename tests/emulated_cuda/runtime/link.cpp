// SPDX-License-Identifier: BSD-3-Clause
#include "link.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "knobs.h"

namespace emulated_cuda {
namespace {

using Clock = std::chrono::steady_clock;

std::mutex mutex;
uint64_t busy[2] = {0, 0};

double bytes_per_s(Direction direction) {
  return direction == Direction::kToDevice ? knobs().h2d_bytes_per_s : knobs().d2h_bytes_per_s;
}

// The instant at which the link has carried these bytes too.
Clock::time_point reserve(int device, Direction direction, uint64_t bytes) {
  static auto& free_at = *new std::map<std::pair<int, Direction>, Clock::time_point>;
  const auto time_ns = static_cast<uint64_t>(static_cast<double>(bytes) / bytes_per_s(direction) * 1e9);
  std::lock_guard lock(mutex);
  busy[static_cast<int>(direction)] += time_ns;
  auto& free = free_at[{device, direction}];
  free = std::max(free, Clock::now()) + std::chrono::nanoseconds(time_ns);
  return free;
}

} // namespace

void carry(int device, Direction direction, char* to, const char* from, uint64_t bytes) {
  if (bytes_per_s(direction) <= 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  const auto done = reserve(device, direction, bytes);
  std::memcpy(to, from, bytes);
  std::this_thread::sleep_until(done);
}

uint64_t busy_ns(Direction direction) {
  std::lock_guard lock(mutex);
  return busy[static_cast<int>(direction)];
}

} // namespace emulated_cuda
