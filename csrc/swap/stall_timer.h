// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace torchlms {

// Adds the time from its construction to its end, in which a thread waits, to a sum of all threads.
class StallTimer {
 public:
  explicit StallTimer(std::atomic<int64_t>& stall_ns)
      : stall_ns_(stall_ns), start_(std::chrono::steady_clock::now()) {}
  ~StallTimer() {
    const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - start_;
    stall_ns_.fetch_add(waited.count(), std::memory_order_relaxed);
  }
  StallTimer(const StallTimer&) = delete;
  StallTimer& operator=(const StallTimer&) = delete;

 private:
  std::atomic<int64_t>& stall_ns_;
  const std::chrono::steady_clock::time_point start_;
};

} // namespace torchlms
