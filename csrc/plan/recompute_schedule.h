// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "plan/event_lists.h"
#include "plan/regions.h"
#include "trace/trace.h"

namespace torchlms {

// Per storage, whether it is recomputed.
using Recomputed = std::vector<uint8_t>;

// Whether a region that reads it prolongs its life where it ends too early.
bool may_be_held_longer(const StorageRecord& storage);

// Shows a trace as it is once some storages are recomputed, such that what is left to plan is swaps.
//
// A recomputed storage is no longer managed. The base holds it up to `dead`, and from its first need on.
// A storage is first needed where backward unpacks it, or where something recomputed from it is first
// needed: that becomes `first_unpack` of the leaves of a region, and `freed` comes no earlier. So these
// positions need not be events of the storage itself. Replays run inside the event that needs them:
// they take their bytes in the interval after it and move all later events.
//
// Thread-safety: none. Refers to the trace and the regions.
class RecomputeSchedule {
 public:
  RecomputeSchedule(const Trace& trace, const Regions& regions);

  // What the functions below are about. Requires: every recomputed storage has a region.
  void choose(const Recomputed& recomputed);
  // Only events (with no base_bytes), storages and forward_end are filled in. Good until the next choice.
  const Trace& shown();
  const Trace& apply(const Recomputed& recomputed) {
    choose(recomputed);
    return shown();
  }
  // The storages of shown(), which take less time.
  const std::vector<StorageRecord>& storages() const {
    return shown_.storages;
  }
  // held_when_kept() of shown(), in less time.
  const std::vector<Bytes>& held();

  // Where each storage of the last set is rebuilt, in the order of the replays.
  struct Rebuild {
    StorageId storage = kNone;
    EventId event = kNone;
    double replay_us = 0;
  };
  std::vector<Rebuild> rebuilds() const;

 private:
  // Of a region, with the leaves whose life it may prolong or whose return it may bring forward.
  struct Replay {
    const Region* region = nullptr;
    std::vector<StorageId> leaves;
  };

  void count_residency();
  void count_replays();
  void show_events();

  const Trace& trace_;
  std::vector<Replay> replays_; // in the order of their last writers: leaves come first
  std::vector<StorageId> touched_; // storages whose record may change
  // Of the trace as it is, per event.
  std::vector<Bytes> kept_; // held before it, when everything is kept
  std::vector<Bytes> kept_after_; // held after it, likewise, if its base stays
  Trace shown_; // of the chosen set: storages always, events once asked for
  bool is_shown_ = false;
  std::vector<Bytes> held_; // empty until asked for
  std::vector<EventId> replay_events_; // each once
  EventLists replays_at_; // indices into replays_, ascending
  std::vector<Bytes> change_; // of the base, after an event, at the place of the next
  std::vector<Bytes> dying_; // per event: managed leaves that are let go once its replays are done
};

} // namespace torchlms
