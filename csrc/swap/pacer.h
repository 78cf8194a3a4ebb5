// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>

#include "trace/types.h"

namespace torchlms {

// Keeps one direction of a link at its limit in bytes per second: every chunk is charged when it
// starts, and neither starts nor ends before the bytes charged so far may have moved. From each
// restart() on, the bytes of the chunks that ended never exceed limit x time.
//
// Not thread-safe: the link calls it under the lock of the direction. A limit of 0 means none.
class Pacer {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Pacer(double limit_bytes_per_s) : limit_bytes_per_s_(limit_bytes_per_s) {}

  // Chunks of about 10 ms of the limit, so that an urgent transfer waits no longer than that; at
  // least 256 KiB, at most `largest`, a multiple of 4096.
  Bytes chunk_bytes(Bytes largest) const;

  // The direction was idle until now: what it did not use is not made up for.
  void restart(Clock::time_point now);
  // The earliest time at which the next chunk may start.
  Clock::time_point next_start() const {
    return paid_until_;
  }
  // Charges a chunk that starts now; returns the earliest time at which it may end.
  Clock::time_point charge(Clock::time_point now, Bytes size);

 private:
  const double limit_bytes_per_s_;
  Clock::time_point paid_until_ = Clock::time_point::min();
};

} // namespace torchlms
