// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <vector>

#include "export.h"
#include "trace/trace.h"

namespace torchlms {

// A storage that may be swapped. "Before event e" is the interval between events e - 1 and e.
struct Candidate {
  StorageId storage = kNone;
  Bytes size_bytes = 0;
  EventId dead = kNone; // its swap-out starts here
  EventId first_unpack = kNone; // kNone: never comes back
  EventId gap_last = kNone; // it may be away before events dead + 1 to gap_last, the latter on demand
  double distance_us = 0; // from dead to the first unpack; infinite without one
};

// Between which events, both included, a storage may be away before the event. Nothing if it may not be
// swapped. Of the trace, the end of its forward pass and the number of its events count.
struct Gap {
  EventId first = kNone;
  EventId last = kNone;
};
std::optional<Gap> swap_gap(const StorageRecord& storage, const Trace& trace);

// In order of `dead`, which is the order of the swap-outs.
std::vector<Candidate> swap_candidates(const Trace& trace);

// Per event, the highest bytes held before it when everything is kept.
TORCHLMS_EXPORT std::vector<Bytes> held_when_kept(const Trace& trace);
// Per event but the last, likewise what is held right after it, before the base changes again.
std::vector<Bytes> held_after_when_kept(const Trace& trace);

} // namespace torchlms
