// SPDX-License-Identifier: BSD-3-Clause
#include "plan/simulator.h"

#include <algorithm>

#include "plan/event_lists.h"
#include "plan/recompute_schedule.h"
#include "plan/regions.h"

namespace torchlms {

namespace {

// Note [Monotone clock]
// Every time below is a chain of max, + and - constant, and each of these is monotone in floating point
// too. So a later release or one swap less never gives a later event, not even by a rounding error: the
// planner relies on it for "more budget is never slower".
class Run {
 public:
  Run(const Trace& trace, const Plan& plan, const CostModel& costs)
      : trace_(trace),
        plan_(plan),
        costs_(costs),
        resident_(plan.base_delta_bytes),
        packs_(trace.events.size(), trace.storages.size()),
        needs_(trace.events.size(), trace.storages.size()),
        frees_(trace.events.size(), trace.storages.size()),
        starts_(trace.events.size(), trace.storages.size()),
        releases_(trace.events.size(), trace.storages.size()),
        done_us_(trace.storages.size(), 0) {
    timeline_.event_us.resize(trace.events.size());
    timeline_.held_bytes.resize(trace.events.size());
    timeline_.in.reserve(plan.swap_in_order.size());
    timeline_.out.reserve(plan.swap_in_order.size());
    for (auto id = static_cast<StorageId>(plan.actions.size()) - 1; id >= 0; --id) {
      list(id);
    }
  }

  Timeline finish() {
    for (size_t i = 0; i < trace_.events.size(); ++i) {
      step(static_cast<EventId>(i));
    }
    timeline_.step_us = now_us_;
    timeline_.stall_us = now_us_ - trace_.step_us();
    return std::move(timeline_);
  }

 private:
  bool swaps(StorageId id) const {
    return plan_.actions[id].kind == ActionKind::kSwap;
  }

  // Storages may be needed and freed at events of others.
  void list(StorageId id) {
    const StorageRecord& storage = trace_.storages[id];
    const Action& action = plan_.actions[id];
    if (!storage.is_managed || storage.first_pack == kNone) {
      return;
    }
    packs_.push_front(storage.first_pack, id);
    if (swaps(id)) {
      starts_.push_front(action.swap_out, id);
      releases_.push_front(action.release, id);
      if (action.swap_in != kNone) {
        needs_.push_front(storage.first_unpack, id);
      }
    }
    if (storage.freed != kNone && (!swaps(id) || action.swap_in != kNone)) {
      frees_.push_front(storage.freed, id);
    }
  }

  void step(EventId id) {
    const Event& event = trace_.events[id];
    now_us_ = std::max(now_us_, event.time_us + stall_us_);
    const Bytes held = event.base_peak_bytes + resident_;
    timeline_.held_bytes[id] = held;
    if (timeline_.peak_event == kNone || held > timeline_.peak_bytes) {
      timeline_.peak_bytes = held;
      timeline_.peak_event = id;
    }
    for (StorageId s = needs_.first(id); s != kNone; s = needs_.next(s)) {
      wait_until(done_us_[s]); // the read reads what the swap-in has written
    }
    for (StorageId s = packs_.first(id); s != kNone; s = packs_.next(s)) {
      resident_ += trace_.storages[s].size_bytes;
    }
    for (StorageId s = frees_.first(id); s != kNone; s = frees_.next(s)) {
      resident_ -= trace_.storages[s].size_bytes;
    }
    start_swap_outs(id);
    for (StorageId s = releases_.first(id); s != kNone; s = releases_.next(s)) {
      wait_until(done_us_[s]);
    }
    free_copied();
    issue_swap_ins(id);
    timeline_.event_us[id] = now_us_;
    stall_us_ = now_us_ - event.time_us;
  }

  void start_swap_outs(EventId id) {
    for (StorageId s = starts_.first(id); s != kNone; s = starts_.next(s)) {
      const double start_us = std::max(now_us_, out_free_us_);
      out_free_us_ = start_us + costs_.out_us(trace_.storages[s].size_bytes);
      done_us_[s] = out_free_us_;
      timeline_.out.push_back({s, start_us, out_free_us_});
    }
  }

  void free_copied() {
    while (num_copied_ < timeline_.out.size() && timeline_.out[num_copied_].end_us <= now_us_) {
      resident_ -= trace_.storages[timeline_.out[num_copied_].storage].size_bytes;
      ++num_copied_;
    }
  }

  void issue_swap_ins(EventId id) {
    while (num_issued_ < plan_.swap_in_order.size()) {
      const StorageId s = plan_.swap_in_order[num_issued_];
      if (plan_.actions[s].swap_in != id) {
        return;
      }
      const Bytes size = trace_.storages[s].size_bytes;
      const double start_us = std::max(now_us_, in_free_us_);
      in_free_us_ = start_us + costs_.in_us(size);
      done_us_[s] = in_free_us_;
      timeline_.in.push_back({s, start_us, in_free_us_});
      resident_ += size;
      ++num_issued_;
    }
  }

  void wait_until(double time_us) {
    now_us_ = std::max(now_us_, time_us);
  }

  const Trace& trace_;
  const Plan& plan_;
  const CostModel& costs_;
  Timeline timeline_;
  Bytes resident_; // managed bytes on the device, and what the base has grown by
  EventLists packs_;
  EventLists needs_; // of what is brought back
  EventLists frees_; // of what is there at its end
  EventLists starts_;
  EventLists releases_;
  std::vector<double> done_us_; // by StorageId: end of its last copy
  double now_us_ = 0;
  double stall_us_ = 0;
  double out_free_us_ = 0;
  double in_free_us_ = 0;
  size_t num_copied_ = 0; // swap-outs that have freed their block
  size_t num_issued_ = 0; // swap-ins issued
};

} // namespace

Timeline simulate_swaps(const Trace& shown, const Plan& plan, const CostModel& costs) {
  return Run(shown, plan, costs).finish();
}

Timeline simulate(const Trace& trace, const Plan& plan, const CostModel& costs) {
  Recomputed recomputed(plan.actions.size());
  std::transform(plan.actions.begin(), plan.actions.end(), recomputed.begin(), [](const Action& action) {
    return action.kind == ActionKind::kRecompute;
  });
  if (std::find(recomputed.begin(), recomputed.end(), 1) == recomputed.end()) {
    return simulate_swaps(trace, plan, costs);
  }
  const Regions regions(trace);
  RecomputeSchedule schedule(trace, regions);
  Timeline timeline = simulate_swaps(schedule.apply(recomputed), plan, costs);
  EventId previous = kNone;
  double start_us = 0;
  for (const RecomputeSchedule::Rebuild& rebuild : schedule.rebuilds()) {
    start_us = rebuild.event == previous ? start_us : timeline.event_us[rebuild.event];
    timeline.recompute.push_back({rebuild.storage, start_us, start_us + rebuild.replay_us});
    timeline.recompute_us += rebuild.replay_us;
    start_us += rebuild.replay_us;
    previous = rebuild.event;
  }
  return timeline;
}

} // namespace torchlms
