// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "export.h"
#include "trace/trace.h"

namespace torchlms {

enum class ActionKind : uint8_t { kKeep, kSwap, kRecompute };

// What to do with one storage. Events are positions in the trace the plan was made for, never times.
// A swap_in is either a place where a prefetch can be issued (an unpack, or the last event of the
// forward pass) or the event just before the storage's first unpack: on demand. A swapped storage that
// backward never unpacks has none. A recomputed storage has no events: it is dropped at its kDead event,
// and its region (see Region) is replayed inside the unpack that first needs it.
struct Action {
  ActionKind kind = ActionKind::kKeep;
  Tier tier = Tier::kDisk; // where a swap goes
  EventId swap_out = kNone; // the copy may start here (the storage's kDead event)
  EventId release = kNone; // the block must be free after this event: the run waits if the copy is late
  EventId swap_in = kNone; // the prefetch is issued right after this event
};

// One action per storage of the trace, and what the simulator expects of it. A plain value.
struct TORCHLMS_EXPORT Plan {
  static constexpr int kFormatVersion = 1;

  std::string policy; // the start that made it
  uint64_t signature = 0; // Trace::signature() of the program it is for
  Bytes budget_bytes = 0;
  Bytes base_delta_bytes = 0; // held at scope entry over what the trace says
  std::vector<Action> actions; // by StorageId
  std::vector<StorageId> swap_in_order; // swapped storages that come back, in the order of their swap-ins
  bool fits = true; // predicted peak within the budget
  Bytes predicted_peak_bytes = 0;
  double predicted_step_us = 0;
  double predicted_stall_us = 0;
  double predicted_recompute_us = 0;
  double lower_bound_us = 0; // no plan within the budget makes the step shorter
  Bytes floor_bytes = 0; // smallest budget that works: peak with every candidate moved
  int32_t num_unmet_demands = 0; // storages for which the policy function demands what cannot be
  std::string floor_op; // op or autograd node at which the floor is reached

  bool moves_nothing() const;
  Bytes swapped_bytes(const Trace& trace) const;
  Bytes recomputed_bytes(const Trace& trace) const;
  std::string to_json() const;
  std::string to_text(const Trace& trace) const; // one line per storage, for people
};

} // namespace torchlms
