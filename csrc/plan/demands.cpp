// SPDX-License-Identifier: BSD-3-Clause
#include "plan/demands.h"

#include <algorithm>

#include "plan/candidates.h"

namespace torchlms {

namespace {

Demands asked_of(const Trace& trace) {
  Demands asked(trace.storages.size(), Demand::kNone);
  for (const Op& op : trace.ops) {
    for (const ValueId value : trace.written(op)) {
      asked[trace.values[value].storage] = op.demand;
    }
  }
  return asked;
}

bool is_possible(const Trace& trace, const Regions& regions, StorageId id, Demand demand) {
  return demand == Demand::kRecompute ? regions.of(id) != nullptr
                                      : swap_gap(trace.storages[id], trace).has_value();
}

} // namespace

bool makes_demands(const Trace& trace) {
  return std::any_of(trace.ops.begin(), trace.ops.end(), [](const Op& op) {
    return op.demand == Demand::kRecompute || op.demand == Demand::kSwap;
  });
}

Demands demands_of(const Trace& trace, const Regions& regions) {
  Demands demands = asked_of(trace);
  bool is_empty = true;
  for (size_t i = 0; i < demands.size(); ++i) {
    if (demands[i] == Demand::kSave || !is_possible(trace, regions, static_cast<StorageId>(i), demands[i])) {
      demands[i] = Demand::kNone;
    }
    is_empty = is_empty && demands[i] == Demand::kNone;
  }
  return is_empty ? Demands() : demands;
}

int32_t num_unmet_demands(const Trace& trace, const Regions& regions) {
  const Demands asked = asked_of(trace);
  int32_t count = 0;
  for (size_t i = 0; i < asked.size(); ++i) {
    const auto id = static_cast<StorageId>(i);
    const bool may_move = asked[i] == Demand::kRecompute || asked[i] == Demand::kSwap;
    count += may_move && trace.storages[i].is_managed && !is_possible(trace, regions, id, asked[i]) ? 1 : 0;
  }
  return count;
}

} // namespace torchlms
