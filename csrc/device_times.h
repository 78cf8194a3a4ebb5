// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <utility>
#include <vector>

#include "swap/swap_engine.h"
#include "trace/recorder.h"

namespace torchlms {

// The times of one step on a device that works through a queue, where the host's clock tells only when work was
// queued. Moments are put into the queue while the step runs and read once it is over. Does nothing on
// other devices. Not thread-safe.
class DeviceTimes {
 public:
  explicit DeviceTimes(SwapEngine& engine);

  void op_starts();
  void op_ended(); // its event follows
  void event(); // the recorder got one
  void replay_starts();
  void replay_ended();

  struct Totals {
    double step_us = 0; // neither waiting for the link nor replaying
    double stall_us = 0; // the device had nothing to do because the host waited for the link
    double recompute_us = 0;
  };
  explicit operator bool() const {
    return start_ != nullptr;
  }
  // Waits for the end of the step, and puts its times into the trace. Requires: *this.
  Totals apply(Trace& trace, std::vector<std::pair<double, Bytes>>& memory) const;

 private:
  using Span = std::pair<MomentPtr, MomentPtr>;

  SwapEngine* engine_;
  MomentPtr start_; // null: the host's clock is right
  size_t first_stall_;
  std::vector<MomentPtr> events_;
  std::vector<Span> ops_;
  std::vector<Span> replays_;
};

} // namespace torchlms
