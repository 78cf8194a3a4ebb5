// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "plan/candidates.h"
#include "plan/plan.h"

namespace torchlms {

// Per candidate, whether it is swapped.
using Selection = std::vector<uint8_t>;

// How far ahead of their unpacks prefetches may be issued.
struct PrefetchRule {
  static constexpr int32_t kNoLimit = INT32_MAX;

  int32_t num_unpacks = 16; // raised: fewer late copies, more memory taken from late releases
  bool may_overtake = false; // issue a later use first where the earlier one does not fit yet
};

// Turns a set of storages to swap into events at which to bring them back and to release them, such that
// the bytes stay within a budget however slow the copies are. Immutable, hence thread-safe; refers to the
// trace. Budgets are in the bytes of the trace. Requires: the selection fits the budget on demand.
class SwapSchedule {
 public:
  explicit SwapSchedule(const Trace& trace);

  const std::vector<Candidate>& candidates() const {
    return candidates_;
  }
  const std::vector<Bytes>& held_when_nothing_is_swapped() const {
    return held_when_kept_;
  }
  // Per event, the highest bytes held before it when the selected storages leave as soon as they may and
  // come back on demand.
  std::vector<Bytes> held_on_demand(const Selection& selected) const;

  // Per candidate, the earliest swap-in that the budget and the rule allow; kNone: it does not come back.
  std::vector<EventId> swap_ins(
      const Selection& selected, Bytes budget_bytes, const PrefetchRule& rule) const;

  // The latest releases that the budget allows. A storage whose release would be no use is kept, unless it is
  // among `forced`, which may be empty.
  Plan plan(
      const Selection& selected,
      const std::vector<EventId>& swap_ins,
      Bytes budget_bytes,
      const Selection& forced) const;

 private:
  std::vector<Bytes> held(const Selection& selected, const std::vector<EventId>& gap_lasts) const;
  std::vector<EventId> releases(
      const Selection& selected, const std::vector<EventId>& gap_lasts, Bytes budget_bytes) const;

  // Indices into issues_ for a candidate that comes back.
  struct Return {
    int32_t candidate = 0;
    int32_t own = 0; // of its first unpack
    int32_t first_issue = 0; // the first that is not before its `dead`
  };

  const Trace& trace_;
  std::vector<Candidate> candidates_;
  std::vector<Bytes> held_when_kept_;
  std::vector<EventId> issues_; // events at which a prefetch may be issued
  std::vector<EventId> waits_; // per event: the last one up to it at which a run may wait for a release
  std::vector<Return> returns_; // earliest first unpack first
};

} // namespace torchlms
