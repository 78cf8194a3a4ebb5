// SPDX-License-Identifier: BSD-3-Clause
#include "swap/pacer.h"

#include <algorithm>

namespace torchlms {
namespace {

constexpr Bytes kSmallestChunkBytes = Bytes{256} << 10;
constexpr double kChunkSeconds = 0.01;
// Threads wake up late; so much of it is made up for, so that the limit is also reached.
constexpr std::chrono::milliseconds kLateness{20};
// Keeps the arithmetic of times in range under absurd limits.
constexpr double kLongestSeconds = 1e8;

} // namespace

Bytes Pacer::chunk_bytes(Bytes largest) const {
  if (limit_bytes_per_s_ <= 0) {
    return largest;
  }
  const double wanted = std::min(limit_bytes_per_s_ * kChunkSeconds, static_cast<double>(largest));
  const Bytes whole_blocks = static_cast<Bytes>(wanted) / 4096 * 4096;
  return std::min(largest, std::max(whole_blocks, kSmallestChunkBytes));
}

void Pacer::restart(Clock::time_point now) {
  paid_until_ = std::max(paid_until_, now);
}

Pacer::Clock::time_point Pacer::charge(Clock::time_point now, Bytes size) {
  if (limit_bytes_per_s_ <= 0) {
    return now;
  }
  const std::chrono::duration<double> cost(
      std::min(static_cast<double>(size) / limit_bytes_per_s_, kLongestSeconds));
  paid_until_ = std::max(paid_until_, now - kLateness) + std::chrono::ceil<Clock::duration>(cost);
  return paid_until_;
}

} // namespace torchlms
