// SPDX-License-Identifier: BSD-3-Clause
#include "plan/candidates.h"

#include <algorithm>
#include <limits>

namespace torchlms {

std::optional<Gap> swap_gap(const StorageRecord& storage, const Trace& trace) {
  if (!storage.is_managed || storage.is_root || storage.first_pack == kNone ||
      storage.dead < storage.first_pack) {
    return std::nullopt;
  }
  Gap gap;
  gap.first = storage.dead + 1;
  if (storage.first_unpack != kNone) {
    if (storage.first_unpack < trace.forward_end) {
      return std::nullopt; // nothing is brought back inside the forward pass
    }
    gap.last = storage.first_unpack - 1;
  } else {
    gap.last = storage.freed != kNone ? storage.freed : static_cast<EventId>(trace.events.size()) - 1;
  }
  return gap.last < gap.first ? std::nullopt : std::optional(gap);
}

std::vector<Candidate> swap_candidates(const Trace& trace) {
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < trace.storages.size(); ++i) {
    const StorageRecord& storage = trace.storages[i];
    const auto gap = swap_gap(storage, trace);
    if (!gap) {
      continue;
    }
    Candidate candidate;
    candidate.storage = static_cast<StorageId>(i);
    candidate.size_bytes = storage.size_bytes;
    candidate.dead = storage.dead;
    candidate.first_unpack = storage.first_unpack;
    candidate.gap_last = gap->last;
    candidate.distance_us = storage.first_unpack == kNone
        ? std::numeric_limits<double>::infinity()
        : trace.events[storage.first_unpack].time_us - trace.events[storage.dead].time_us;
    candidates.push_back(candidate);
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.dead < b.dead;
  });
  return candidates;
}

std::vector<Bytes> held_when_kept(const Trace& trace) {
  std::vector<Bytes> change(trace.events.size() + 1, 0); // after an event, at the place of the next
  for (const StorageRecord& storage : trace.storages) {
    if (storage.is_managed && storage.first_pack != kNone) {
      change[storage.first_pack + 1] += storage.size_bytes;
      if (storage.freed != kNone) {
        change[storage.freed + 1] -= storage.size_bytes;
      }
    }
  }
  std::vector<Bytes> held(trace.events.size());
  Bytes resident = 0;
  for (size_t i = 0; i < held.size(); ++i) {
    resident += change[i];
    held[i] = trace.events[i].base_peak_bytes + resident;
  }
  return held;
}

std::vector<Bytes> held_after_when_kept(const Trace& trace) {
  std::vector<Bytes> held = held_when_kept(trace);
  for (size_t i = 0; i + 1 < held.size(); ++i) {
    held[i] = held[i + 1] - trace.events[i + 1].base_peak_bytes + trace.events[i].base_bytes;
  }
  if (!held.empty()) {
    held.back() = 0; // nothing is rebuilt there
  }
  return held;
}

} // namespace torchlms
