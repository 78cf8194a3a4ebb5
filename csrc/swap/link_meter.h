// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <deque>
#include <vector>

#include "swap/link.h"

namespace torchlms {

// Counts what one direction of a link does: statistics, and records of ended transfers, both bounded.
//
// Not thread-safe: guarded by the lock of the direction.
class LinkMeter {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMaxRecords = 16384;
  static constexpr size_t kMaxWaits = 4096;

  explicit LinkMeter(Clock::time_point epoch) : epoch_(epoch), busy_since_(epoch) {}

  void chunk_started(const Link::Transfer& transfer, Clock::time_point now, bool first);
  void chunk_ended(Clock::time_point now, Bytes moved);
  // Requires: at least one chunk of it has started.
  void transfer_ended(const Link::Transfer& transfer, Clock::time_point now);

  LinkStats stats(Clock::time_point now) const;
  void reset(Clock::time_point now); // keeps the records
  std::vector<TransferRecord> take_records();
  int64_t to_us(Clock::time_point time) const;

 private:
  double busy_us_until(Clock::time_point now) const;

  const Clock::time_point epoch_;

  LinkStats counts_;
  int chunks_in_flight_ = 0;
  Clock::time_point busy_since_; // while chunks are in flight
  std::vector<double> waits_us_; // the last kMaxWaits of them, a ring
  size_t next_wait_ = 0;
  std::deque<TransferRecord> records_;
};

} // namespace torchlms
