// SPDX-License-Identifier: BSD-3-Clause
#include "plan/planner.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "plan/demands.h"
#include "plan/lower_bound.h"
#include "plan/mixed_search.h"
#include "plan/move_everything.h"
#include "plan/simulator.h"
#include "plan/swap_by_distance.h"
#include "plan/swap_schedule.h"
#include "plan/workbench.h"

namespace torchlms {

namespace {

Plan keep_everything(const Trace& trace) {
  Plan plan;
  plan.actions.resize(trace.storages.size());
  return plan;
}

// Keeps all but what is demanded; nothing where that does not fit.
std::optional<Plan> keep_all_but_demanded(const Trace& trace, const CostModel& costs, Bytes budget_bytes) {
  Workbench bench(trace, costs);
  Design design = bench.keep_everything();
  const std::vector<Bytes> held = bench.held_on_demand(design);
  if (*std::max_element(held.begin(), held.end()) > budget_bytes) {
    return std::nullopt;
  }
  design.score = bench.score(design, budget_bytes);
  bench.try_rules(design, budget_bytes);
  return bench.plan(design, budget_bytes, budget_bytes);
}

// What swapping everything holds that need not be recomputed.
std::vector<Bytes> held_at_least(const Trace& trace) {
  const auto held = [](const Trace& shown) {
    const SwapSchedule schedule(shown);
    return schedule.held_on_demand(Selection(schedule.candidates().size(), 1));
  };
  if (!makes_demands(trace)) {
    return held(trace);
  }
  const Regions regions(trace);
  const Demands demands = demands_of(trace, regions);
  Recomputed recomputed(trace.storages.size());
  std::transform(demands.begin(), demands.end(), recomputed.begin(), [](Demand demand) {
    return demand == Demand::kRecompute;
  });
  RecomputeSchedule schedule(trace, regions);
  return held(schedule.apply(recomputed));
}

const char* to_string(PlanPolicy policy) {
  switch (policy) {
    case PlanPolicy::kAuto:
      return "auto";
    case PlanPolicy::kSwap:
      return "swap";
    case PlanPolicy::kRecompute:
      return "recompute";
    case PlanPolicy::kHybrid:
      return "hybrid";
  }
  return "";
}

// Sets the budget to what the plan needs where that is not the floor.
Plan move_all(const Trace& trace, const CostModel& costs, PlanPolicy policy, Bytes& budget) {
  if (policy == PlanPolicy::kSwap) {
    return swap_everything(trace, costs, budget);
  }
  if (policy == PlanPolicy::kRecompute) {
    SizedPlan sized = recompute_everything(trace, costs);
    budget = std::max(budget, sized.budget_bytes);
    return std::move(sized.plan);
  }
  return move_everything(trace, costs, budget);
}

Plan search(
    const Trace& trace, const CostModel& costs, PlanPolicy policy, Bytes floor_bytes, Bytes budget_bytes) {
  if (policy == PlanPolicy::kSwap) {
    return swap_by_distance(trace, costs, floor_bytes, budget_bytes);
  }
  MixedSearch mixed(trace, costs, floor_bytes);
  switch (policy) {
    case PlanPolicy::kRecompute:
      return mixed.recompute(budget_bytes);
    case PlanPolicy::kHybrid:
      return mixed.hybrid(budget_bytes);
    default:
      return mixed.best(
          budget_bytes,
          makes_demands(trace) ? std::nullopt
                               : std::optional(swap_by_distance(trace, costs, floor_bytes, budget_bytes)));
  }
}

} // namespace

Floor floor_of(const Trace& trace) {
  const std::vector<Bytes> held = held_at_least(trace);
  const auto highest = std::max_element(held.begin(), held.end());
  if (highest == held.end()) {
    return {};
  }
  return {*highest, static_cast<EventId>(highest - held.begin())};
}

std::string name_of_event(const Trace& trace, EventId event) {
  if (event == kNone) {
    return "";
  }
  if (event >= trace.forward_end) {
    return trace.backward_peak_node.empty() ? "backward" : trace.backward_peak_node;
  }
  // An op's event comes when it has returned: packs before it belong to it.
  for (EventId id = event; id < trace.forward_end; ++id) {
    if (trace.events[id].kind == EventKind::kOp) {
      return trace.name(trace.ops[trace.events[id].subject]);
    }
  }
  return "end of forward";
}

Plan make_plan(const Trace& trace, const CostModel& costs, const PlanRequest& request) {
  const Floor floor = floor_of(trace);
  Bytes budget = request.budget_bytes - request.base_delta_bytes;
  const bool keeps = request.budget_bytes != 0 && trace.unlimited_peak_bytes() <= budget;
  std::optional<Plan> kept;
  if (keeps && makes_demands(trace)) {
    kept = keep_all_but_demanded(trace, costs, budget);
  } else if (keeps) {
    kept = keep_everything(trace);
  }
  Plan plan;
  if (request.budget_bytes == 0) {
    budget = floor.bytes;
    plan = move_all(trace, costs, request.policy, budget);
  } else if (budget < floor.bytes) {
    plan = swap_everything(trace, costs, floor.bytes);
  } else if (kept) {
    plan = std::move(*kept);
  } else {
    plan = search(trace, costs, request.policy, floor.bytes, budget);
  }
  plan.policy = to_string(request.policy);
  plan.signature = trace.signature();
  plan.budget_bytes = budget + request.base_delta_bytes;
  plan.base_delta_bytes = request.base_delta_bytes;
  plan.fits = budget >= floor.bytes;
  plan.floor_bytes = floor.bytes + request.base_delta_bytes;
  plan.floor_op = name_of_event(trace, floor.event);
  const Timeline timeline = simulate(trace, plan, costs);
  plan.predicted_peak_bytes = timeline.peak_bytes;
  plan.predicted_step_us = timeline.step_us;
  plan.predicted_stall_us = timeline.stall_us;
  plan.predicted_recompute_us = timeline.recompute_us;
  plan.num_unmet_demands = makes_demands(trace) ? num_unmet_demands(trace, Regions(trace)) : 0;
  plan.lower_bound_us = lower_bound_us(trace, costs, std::max(budget, floor.bytes));
  return plan;
}

} // namespace torchlms
