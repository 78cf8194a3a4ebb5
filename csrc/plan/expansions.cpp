// SPDX-License-Identifier: BSD-3-Clause
#include "plan/expansions.h"

#include <algorithm>
#include <vector>

namespace torchlms {

namespace {

constexpr double kExpansion = 4;
constexpr double kLight = 8; // at most so many times as long per byte as the lightest op

double size_of(const Trace& trace, StorageId id) {
  return static_cast<double>(trace.storages[id].size_bytes);
}

// Bytes per microsecond of the lightest op.
double fastest(const Trace& trace) {
  double rate = 0;
  for (const Op& op : trace.ops) {
    double made = 0;
    for (const ValueId value : trace.written(op)) {
      made += static_cast<double>(trace.values[value].size_bytes);
    }
    rate = op.duration_us > 0 ? std::max(rate, made / op.duration_us) : rate;
  }
  return rate;
}

} // namespace

Design recompute_expansions(Workbench& bench) {
  const Trace& trace = bench.trace();
  const double least_rate = fastest(trace) / kLight;
  std::vector<int> num_readers(trace.storages.size(), 0);
  for (const Region& region : bench.regions().all()) {
    for (const StorageId leaf : region.leaves) {
      ++num_readers[leaf];
    }
  }
  Design design = bench.keep_everything();
  for (const Region& region : bench.regions().all()) {
    const double size = size_of(trace, region.storage);
    double extra = 0;
    for (const StorageId leaf : region.leaves) {
      const bool may_go = trace.storages[leaf].is_managed;
      extra += may_go ? size_of(trace, leaf) / num_readers[leaf] : 0;
    }
    if (size >= kExpansion * extra && size >= least_rate * region.replay_us &&
        bench.may_be(region.storage, ActionKind::kRecompute)) {
      design.kinds[region.storage] = ActionKind::kRecompute;
    }
  }
  return design;
}

} // namespace torchlms
