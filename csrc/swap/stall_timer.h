// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "swap/device.h"

namespace torchlms {

// When threads waited: the sum, and on a device with a queue the moments around each wait. What passes between
// those on the device's own clock is time in which it had nothing to do. Thread-safe.
class StallLog {
 public:
  using Span = std::pair<MomentPtr, MomentPtr>;
  static constexpr size_t kMostSpans = 8192;

  double sum_us() const {
    return static_cast<double>(sum_ns_.load(std::memory_order_relaxed)) / 1e3;
  }
  size_t num_spans() const {
    const std::lock_guard lock(mutex_);
    return num_dropped_ + spans_.size();
  }
  // Those after the first `count`, as far as they are still known.
  std::vector<Span> spans_since(size_t count) const {
    const std::lock_guard lock(mutex_);
    const size_t skipped = count > num_dropped_ ? count - num_dropped_ : 0;
    return skipped < spans_.size()
        ? std::vector<Span>(spans_.begin() + static_cast<std::ptrdiff_t>(skipped), spans_.end())
        : std::vector<Span>();
  }

 private:
  friend class StallTimer;
  void add(std::chrono::nanoseconds waited, Span span) {
    sum_ns_.fetch_add(waited.count(), std::memory_order_relaxed);
    if (!span.first || !span.second) {
      return;
    }
    const std::lock_guard lock(mutex_);
    spans_.push_back(std::move(span));
    if (spans_.size() > kMostSpans) {
      spans_.pop_front();
      ++num_dropped_;
    }
  }

  std::atomic<int64_t> sum_ns_{0};
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::deque<Span> spans_;
  size_t num_dropped_ = 0;
};

// Logs the time from its construction to its end, in which a thread waits.
class StallTimer {
 public:
  StallTimer(StallLog& log, Device& device)
      : log_(log), device_(device), before_(device.moment()), start_(std::chrono::steady_clock::now()) {}
  ~StallTimer() {
    const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - start_;
    MomentPtr after;
    try {
      after = before_ ? device_.moment() : nullptr;
    } catch (...) {
      // The device has failed: whoever uses it next is told.
    }
    log_.add(waited, {before_, after});
  }
  StallTimer(const StallTimer&) = delete;
  StallTimer& operator=(const StallTimer&) = delete;

 private:
  StallLog& log_;
  Device& device_;
  const MomentPtr before_;
  const std::chrono::steady_clock::time_point start_;
};

} // namespace torchlms
