// SPDX-License-Identifier: BSD-3-Clause
#include "device_times.h"

#include <algorithm>

namespace torchlms {

namespace {

// Stretches of the device's time that are none of the program's, in order.
struct Gap {
  double start_us = 0;
  double length_us = 0;
};

double gaps_until(const std::vector<Gap>& gaps, double time_us) {
  double sum = 0;
  for (const Gap& gap : gaps) {
    sum += std::clamp(time_us - gap.start_us, 0.0, gap.length_us);
  }
  return sum;
}

} // namespace

DeviceTimes::DeviceTimes(SwapEngine& engine)
    : engine_(&engine), start_(engine.device().moment()), first_stall_(engine.stalls().num_spans()) {}

void DeviceTimes::op_starts() {
  if (start_) {
    ops_.emplace_back(engine_->device().moment(), nullptr);
  }
}

void DeviceTimes::op_ended() {
  if (start_ && !ops_.empty()) {
    ops_.back().second = engine_->device().moment();
  }
}

void DeviceTimes::event() {
  if (start_) {
    events_.push_back(engine_->device().moment());
  }
}

void DeviceTimes::replay_starts() {
  if (start_) {
    replays_.emplace_back(engine_->device().moment(), nullptr);
  }
}

void DeviceTimes::replay_ended() {
  if (start_) {
    replays_.back().second = engine_->device().moment();
  }
}

DeviceTimes::Totals DeviceTimes::apply(Trace& trace, std::vector<std::pair<double, Bytes>>& memory) const {
  std::vector<Gap> stalls;
  for (const auto& [from, to] : engine_->stalls().spans_since(first_stall_)) {
    stalls.push_back({from->us_since(*start_), to->us_since(*from)});
  }
  std::vector<Gap> gaps = stalls;
  Totals totals;
  for (const auto& [from, to] : replays_) {
    if (from && to) {
      // A stall within a replay is counted as a stall.
      const double start_us = from->us_since(*start_);
      const double length_us = to->us_since(*from);
      const double stalled_us = gaps_until(stalls, start_us + length_us) - gaps_until(stalls, start_us);
      gaps.push_back({start_us, length_us - stalled_us});
      totals.recompute_us += length_us - stalled_us;
    }
  }
  double last_us = 0;
  double last_wall_us = 0;
  for (size_t i = 0; i < events_.size() && i < trace.events.size(); ++i) {
    const double wall_us = events_[i] ? events_[i]->us_since(*start_) : last_wall_us;
    last_wall_us = std::max(last_wall_us, wall_us);
    last_us = std::max(last_us, wall_us - gaps_until(gaps, wall_us));
    trace.events[i].time_us = last_us;
    if (i < memory.size()) {
      memory[i].first = wall_us;
    }
  }
  totals.step_us = last_us;
  totals.stall_us = gaps_until(stalls, last_wall_us);
  size_t next_op = 0;
  for (const auto& [from, to] : ops_) {
    if (from && to && next_op < trace.ops.size()) {
      trace.ops[next_op++].duration_us = to->us_since(*from);
    }
  }
  return totals;
}

} // namespace torchlms
