// SPDX-License-Identifier: BSD-3-Clause
#include "plan/move_everything.h"

#include <algorithm>
#include <limits>

#include "plan/flips.h"
#include "plan/workbench.h"

namespace torchlms {

namespace {

constexpr int kMaxTurns = 512;
constexpr int kMaxFlips = 256;

} // namespace

Plan move_everything(const Trace& trace, const CostModel& costs, Bytes floor_bytes) {
  Workbench bench(trace, costs, /*moves_all=*/true);
  Design design = bench.keep_everything();
  bench.fit(design, floor_bytes);
  design.score = bench.score(design, floor_bytes);
  bench.try_rules(design, floor_bytes);
  turn_swaps(bench, design, floor_bytes, kMaxTurns);
  flip_each(bench, design, floor_bytes, 0, kMaxFlips);
  bench.try_rules(design, floor_bytes);
  return bench.plan(design, floor_bytes, floor_bytes);
}

SizedPlan recompute_everything(const Trace& trace, const CostModel& costs) {
  Workbench bench(trace, costs, /*moves_all=*/true);
  Design design = bench.keep_everything();
  for (const Region& region : bench.regions().all()) {
    design.kinds[region.storage] = ActionKind::kRecompute;
  }
  bench.fit(design, std::numeric_limits<Bytes>::max());
  const std::vector<Bytes> held = bench.held_on_demand(design);
  const Bytes level = held.empty() ? 0 : *std::max_element(held.begin(), held.end());
  design.score = bench.score(design, level);
  bench.try_rules(design, level);
  return {bench.plan(design, level, level), level};
}

} // namespace torchlms
