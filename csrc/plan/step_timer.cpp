// SPDX-License-Identifier: BSD-3-Clause
#include "plan/step_timer.h"

#include <algorithm>
#include <bit>

namespace torchlms {

StepTimer::StepTimer(size_t num_events, size_t num_storages)
    : needs_(num_events, num_storages),
      starts_(num_events, num_storages),
      releases_(num_events, num_storages),
      marks_(num_events / 64 + 1),
      done_us_(num_storages) {}

void StepTimer::list(const Trace& shown, const Plan& plan) {
  std::fill(marks_.begin(), marks_.end(), 0);
  needs_.clear();
  starts_.clear();
  releases_.clear();
  for (auto id = static_cast<StorageId>(plan.actions.size()) - 1; id >= 0; --id) {
    const Action& action = plan.actions[id];
    if (action.kind != ActionKind::kSwap) {
      continue;
    }
    starts_.push_front(action.swap_out, id);
    releases_.push_front(action.release, id);
    mark(action.swap_out);
    mark(action.release);
    if (action.swap_in != kNone) {
      needs_.push_front(shown.storages[id].first_unpack, id);
      mark(shown.storages[id].first_unpack);
      mark(action.swap_in);
    }
  }
}

double StepTimer::step_us(const Trace& shown, const Plan& plan, const CostModel& costs) {
  list(shown, plan);
  double now_us = 0;
  double stall_us = 0;
  double out_free_us = 0;
  double in_free_us = 0;
  size_t num_issued = 0;
  for (size_t word = 0; word < marks_.size(); ++word) {
    for (uint64_t bits = marks_[word]; bits != 0; bits &= bits - 1) {
      const auto event = static_cast<EventId>(word * 64 + std::countr_zero(bits));
      const double time_us = shown.events[event].time_us;
      now_us = std::max(now_us, time_us + stall_us);
      for (StorageId s = needs_.first(event); s != kNone; s = needs_.next(s)) {
        now_us = std::max(now_us, done_us_[s]);
      }
      for (StorageId s = starts_.first(event); s != kNone; s = starts_.next(s)) {
        out_free_us = std::max(now_us, out_free_us) + costs.out_us(shown.storages[s].size_bytes);
        done_us_[s] = out_free_us;
      }
      for (StorageId s = releases_.first(event); s != kNone; s = releases_.next(s)) {
        now_us = std::max(now_us, done_us_[s]);
      }
      for (; num_issued < plan.swap_in_order.size(); ++num_issued) {
        const StorageId s = plan.swap_in_order[num_issued];
        if (plan.actions[s].swap_in != event) {
          break;
        }
        in_free_us = std::max(now_us, in_free_us) + costs.in_us(shown.storages[s].size_bytes);
        done_us_[s] = in_free_us;
      }
      stall_us = now_us - time_us;
    }
  }
  return shown.step_us() + stall_us;
}

} // namespace torchlms
