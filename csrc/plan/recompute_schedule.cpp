// SPDX-License-Identifier: BSD-3-Clause
#include "plan/recompute_schedule.h"

#include <algorithm>

#include "plan/candidates.h"

namespace torchlms {

bool may_be_held_longer(const StorageRecord& storage) {
  return storage.freed != kNone && !storage.outlives_step;
}

RecomputeSchedule::RecomputeSchedule(const Trace& trace, const Regions& regions)
    : trace_(trace), replays_at_(trace.events.size(), regions.all().size()) {
  for (const Region& region : regions.all()) {
    Replay replay;
    replay.region = &region;
    std::copy_if(
        region.leaves.begin(), region.leaves.end(), std::back_inserter(replay.leaves), [&](StorageId leaf) {
          return trace.storages[leaf].is_managed || may_be_held_longer(trace.storages[leaf]);
        });
    touched_.push_back(region.storage);
    touched_.insert(touched_.end(), replay.leaves.begin(), replay.leaves.end());
    replays_.push_back(std::move(replay));
  }
  std::stable_sort(replays_.begin(), replays_.end(), [](const Replay& a, const Replay& b) {
    return a.region->ops.back() < b.region->ops.back();
  });
  std::sort(touched_.begin(), touched_.end());
  touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
  shown_.events = trace.events;
  shown_.storages = trace.storages;
  shown_.forward_end = trace.forward_end;
  shown_.entry_bytes = trace.entry_bytes;
  kept_ = held_when_kept(trace);
  kept_after_ = held_after_when_kept(trace);
  change_.resize(trace.events.size() + 1);
  dying_.resize(trace.events.size());
}

const Trace& RecomputeSchedule::shown() {
  if (!is_shown_) {
    count_residency();
    show_events();
    is_shown_ = true;
  }
  return shown_;
}

std::vector<RecomputeSchedule::Rebuild> RecomputeSchedule::rebuilds() const {
  std::vector<Rebuild> rebuilds;
  for (size_t i = 0; i < shown_.events.size(); ++i) {
    const auto event = static_cast<EventId>(i);
    for (int32_t r = replays_at_.first(event); r != kNone; r = replays_at_.next(r)) {
      rebuilds.push_back({replays_[r].region->storage, event, replays_[r].region->replay_us});
    }
  }
  return rebuilds;
}

void RecomputeSchedule::choose(const Recomputed& recomputed) {
  is_shown_ = false;
  held_.clear();
  for (const StorageId id : touched_) {
    shown_.storages[id] = trace_.storages[id];
  }
  for (const EventId event : replay_events_) {
    replays_at_.clear(event);
  }
  replay_events_.clear();
  for (auto i = static_cast<int32_t>(replays_.size()) - 1; i >= 0; --i) {
    const StorageId id = replays_[i].region->storage;
    if (!recomputed[id]) {
      continue;
    }
    // Whatever is rebuilt from it has a later last writer, and has been here.
    const EventId need = shown_.storages[id].first_unpack;
    if (replays_at_.first(need) == kNone) {
      replay_events_.push_back(need);
    }
    replays_at_.push_front(need, i);
    shown_.storages[id].is_managed = false;
    for (const StorageId leaf : replays_[i].leaves) {
      StorageRecord& storage = shown_.storages[leaf];
      if (storage.first_unpack == kNone || storage.first_unpack > need) {
        storage.first_unpack = need;
      }
      if (may_be_held_longer(storage)) {
        storage.freed = std::max(storage.freed, need);
      }
    }
  }
}

void RecomputeSchedule::count_residency() {
  std::fill(change_.begin(), change_.end(), 0);
  std::fill(dying_.begin(), dying_.end(), 0);
  for (const StorageId id : touched_) {
    const StorageRecord& storage = shown_.storages[id];
    const StorageRecord& recorded = trace_.storages[id];
    const Bytes size = storage.size_bytes;
    if (recorded.is_managed && !storage.is_managed) {
      change_[storage.first_pack + 1] += size;
      change_[storage.dead + 1] -= size;
      change_[storage.first_unpack + 1] += size;
      if (storage.freed != kNone) {
        change_[storage.freed + 1] -= size;
      }
    } else if (storage.freed > recorded.freed) {
      if (storage.is_managed) {
        dying_[storage.freed] += size;
      } else {
        change_[recorded.freed + 1] += size;
        change_[storage.freed + 1] -= size;
      }
    }
  }
}

const std::vector<Bytes>& RecomputeSchedule::held() {
  if (!held_.empty()) {
    return held_;
  }
  std::fill(change_.begin(), change_.end(), 0);
  for (const StorageId id : touched_) {
    const StorageRecord& storage = shown_.storages[id];
    const StorageRecord& recorded = trace_.storages[id];
    if (recorded.is_managed && !storage.is_managed) {
      change_[storage.dead + 1] -= storage.size_bytes;
      change_[storage.first_unpack + 1] += storage.size_bytes;
    }
    if (storage.freed > recorded.freed) {
      change_[recorded.freed + 1] += storage.size_bytes;
      change_[storage.freed + 1] -= storage.size_bytes;
    }
  }
  held_ = kept_;
  Bytes change = 0;
  for (size_t i = 0; i < held_.size(); ++i) {
    change += change_[i];
    held_[i] += change;
    change_[i] = change;
  }
  count_replays();
  return held_;
}

// The replays of an event end with all that is held after it, and with the leaves that are then let go.
void RecomputeSchedule::count_replays() {
  for (const EventId event : replay_events_) {
    dying_[event] = 0;
  }
  for (const StorageId id : touched_) {
    if (shown_.storages[id].freed > trace_.storages[id].freed) {
      dying_[shown_.storages[id].freed] += shown_.storages[id].size_bytes;
    }
  }
  for (const EventId event : replay_events_) {
    Bytes rebuilt = kept_after_[event] + change_[event + 1] + dying_[event];
    for (int32_t r = replays_at_.first(event); r != kNone; r = replays_at_.next(r)) {
      rebuilt -= trace_.storages[replays_[r].region->storage].size_bytes;
    }
    for (int32_t r = replays_at_.first(event); r != kNone; r = replays_at_.next(r)) {
      held_[event + 1] = std::max(held_[event + 1], rebuilt + replays_[r].region->extra_bytes);
      rebuilt += trace_.storages[replays_[r].region->storage].size_bytes;
    }
  }
}

void RecomputeSchedule::show_events() {
  Bytes held = 0; // by what is recomputed, and by leaves that live longer
  double replayed_us = 0;
  Bytes replay_peak = 0; // of the previous event
  for (size_t i = 0; i < shown_.events.size(); ++i) {
    const Event& recorded = trace_.events[i];
    const Bytes held_before = held + change_[i];
    shown_.events[i].time_us = recorded.time_us + replayed_us;
    shown_.events[i].base_peak_bytes = std::max(recorded.base_peak_bytes + held_before, replay_peak);
    held = held_before;
    replay_peak = 0;
    Bytes rebuilt = recorded.base_bytes + held_before + dying_[i];
    const auto event = static_cast<EventId>(i);
    for (int32_t r = replays_at_.first(event); r != kNone; r = replays_at_.next(r)) {
      const Region& region = *replays_[r].region;
      replay_peak = std::max(replay_peak, rebuilt + region.extra_bytes);
      rebuilt += trace_.storages[region.storage].size_bytes;
      replayed_us += region.replay_us;
    }
  }
}

} // namespace torchlms
