// SPDX-License-Identifier: BSD-3-Clause
#include "swap/link_meter.h"

#include <algorithm>

#include "swap/transfer_queue.h"

namespace torchlms {
namespace {

using Microseconds = std::chrono::duration<double, std::micro>;

double percentile(std::vector<double> values, double fraction) {
  if (values.empty()) {
    return 0;
  }
  const auto nth =
      values.begin() + static_cast<std::ptrdiff_t>(fraction * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

} // namespace

void LinkMeter::chunk_started(const Link::Transfer& transfer, Clock::time_point now, bool first) {
  if (chunks_in_flight_++ == 0) {
    busy_since_ = now;
  }
  if (!first) {
    return;
  }
  const double wait_us = Microseconds(now - transfer.submitted_at).count();
  if (waits_us_.size() < kMaxWaits) {
    waits_us_.push_back(wait_us);
  } else {
    waits_us_[next_wait_++ % kMaxWaits] = wait_us;
  }
}

void LinkMeter::chunk_ended(Clock::time_point now, Bytes moved) {
  counts_.bytes += moved;
  counts_.busy_us = busy_us_until(now);
  busy_since_ = now;
  --chunks_in_flight_;
}

void LinkMeter::transfer_ended(const Link::Transfer& transfer, Clock::time_point now) {
  ++counts_.num_transfers;
  counts_.num_late += transfer.late ? 1 : 0;
  if (records_.size() == kMaxRecords) {
    records_.pop_front();
  }
  records_.push_back({transfer.direction, to_us(transfer.started_at), to_us(now), transfer.moved_bytes});
}

LinkStats LinkMeter::stats(Clock::time_point now) const {
  LinkStats stats = counts_;
  stats.busy_us = busy_us_until(now);
  stats.wait_us_p50 = percentile(waits_us_, 0.5);
  stats.wait_us_p99 = percentile(waits_us_, 0.99);
  return stats;
}

void LinkMeter::reset(Clock::time_point now) {
  counts_ = {};
  busy_since_ = now;
  waits_us_.clear();
  next_wait_ = 0;
}

std::vector<TransferRecord> LinkMeter::take_records() {
  std::vector<TransferRecord> taken(records_.begin(), records_.end());
  records_.clear();
  return taken;
}

int64_t LinkMeter::to_us(Clock::time_point time) const {
  return std::chrono::duration_cast<std::chrono::microseconds>(time - epoch_).count();
}

double LinkMeter::busy_us_until(Clock::time_point now) const {
  return counts_.busy_us + (chunks_in_flight_ > 0 ? Microseconds(now - busy_since_).count() : 0);
}

} // namespace torchlms
