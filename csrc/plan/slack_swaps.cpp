// SPDX-License-Identifier: BSD-3-Clause
#include "plan/slack_swaps.h"

#include <algorithm>

namespace torchlms {

namespace {

struct Transfer {
  StorageId storage = kNone;
  double out_from_us = 0;
  double out_us = 0;
  double in_us = 0;
  double in_until_us = 0;

  double slack_us() const {
    return in_until_us - out_from_us - out_us - in_us;
  }
};

// Earliest first in both directions, which meets all deadlines if any order does.
bool meet_deadlines(std::vector<Transfer> transfers, double turn_us) {
  std::sort(transfers.begin(), transfers.end(), [](const Transfer& a, const Transfer& b) {
    return a.out_from_us < b.out_from_us;
  });
  double free_us = 0;
  for (const Transfer& transfer : transfers) {
    free_us = std::max(free_us, transfer.out_from_us) + transfer.out_us;
  }
  if (free_us > turn_us) {
    return false;
  }
  std::stable_sort(transfers.begin(), transfers.end(), [](const Transfer& a, const Transfer& b) {
    return a.in_until_us < b.in_until_us;
  });
  free_us = turn_us;
  return std::all_of(transfers.begin(), transfers.end(), [&free_us](const Transfer& transfer) {
    free_us += transfer.in_us;
    return free_us <= transfer.in_until_us;
  });
}

} // namespace

Design slack_swaps(Workbench& bench) {
  Design design = bench.keep_everything();
  design.start = StartKind::kSlack;
  const Trace& trace = bench.trace();
  if (trace.forward_end == 0) {
    return design;
  }
  const double turn_us = trace.events[trace.forward_end - 1].time_us;
  std::vector<Transfer> transfers;
  for (const Candidate& candidate : bench.candidates(design)) {
    const bool returns = candidate.first_unpack != kNone;
    const double until_us = returns ? trace.events[candidate.first_unpack].time_us : trace.step_us();
    transfers.push_back(
        {candidate.storage,
         trace.events[candidate.dead].time_us,
         bench.costs().out_us(candidate.size_bytes),
         returns ? bench.costs().in_us(candidate.size_bytes) : 0,
         until_us});
  }
  std::stable_sort(transfers.begin(), transfers.end(), [](const Transfer& a, const Transfer& b) {
    return a.slack_us() > b.slack_us();
  });
  std::vector<Transfer> admitted;
  for (const Transfer& transfer : transfers) {
    if (transfer.slack_us() <= 0) {
      break;
    }
    admitted.push_back(transfer);
    if (meet_deadlines(admitted, turn_us)) {
      design.kinds[transfer.storage] = ActionKind::kSwap;
    } else {
      admitted.pop_back();
    }
  }
  return design;
}

} // namespace torchlms
