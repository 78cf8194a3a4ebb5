// SPDX-License-Identifier: BSD-3-Clause
#include "python/planning.h"

#include <array>
#include <c10/util/Exception.h>
#include <optional>
#include <pybind11/stl.h>
#include <string>
#include <utility>
#include <vector>

#include "plan/candidates.h"
#include "plan/choices.h"
#include "plan/cost_file.h"
#include "plan/planner.h"
#include "plan/simulator.h"
#include "python/plan_loading.h"
#include "trace/json.h"

namespace py = pybind11;

namespace torchlms {

namespace {

PlanPolicy policy_of(const std::string& name) {
  static constexpr std::pair<const char*, PlanPolicy> kPolicies[] = {
      {"auto", PlanPolicy::kAuto},
      {"swap", PlanPolicy::kSwap},
      {"recompute", PlanPolicy::kRecompute},
      {"hybrid", PlanPolicy::kHybrid},
  };
  for (const auto& [known, policy] : kPolicies) {
    if (name == known) {
      return policy;
    }
  }
  TORCH_CHECK_VALUE(
      false, "torchlms: unknown policy \"", name, "\" of a plan; one of auto, swap, recompute, hybrid");
}

std::string summary_json(const Trace& trace) {
  const Floor floor = floor_of(trace);
  JsonWriter json;
  json.begin_object()
      .field("floor_bytes", floor.bytes)
      .field("floor_op", name_of_event(trace, floor.event))
      .field("unlimited_peak_bytes", trace.unlimited_peak_bytes())
      .field("unlimited_step_us", trace.step_us())
      .field("saved_bytes", trace.saved_bytes())
      .end_object();
  return json.take();
}

void write_points(
    JsonWriter& json, const char* name, const std::vector<double>& times_us, const std::vector<Bytes>& held) {
  json.key(name).begin_array();
  for (size_t i = 0; i < held.size(); ++i) {
    json.begin_array().value(times_us[i]).value(held[i]).end_array();
  }
  json.end_array();
}

void write_bars(
    JsonWriter& json, const char* direction, const std::vector<Interval>& intervals, const Trace& trace) {
  for (const Interval& interval : intervals) {
    json.begin_array()
        .value(direction)
        .value(interval.start_us)
        .value(interval.end_us)
        .value(trace.storages[interval.storage].size_bytes)
        .end_array();
  }
}

// In the form of Session::timeline_json, with the replays.
std::string timeline_json(const Trace& trace, const Plan& plan, const CostModel& costs) {
  const Timeline timeline = simulate(trace, plan, costs);
  JsonWriter json;
  json.begin_object().field("budget_bytes", plan.budget_bytes);
  json.field("forward_end_us", trace.forward_end > 0 ? timeline.event_us[trace.forward_end - 1] : 0.0);
  write_points(json, "memory", timeline.event_us, timeline.held_bytes);
  write_points(json, "unlimited", timeline.event_us, held_when_kept(trace));
  json.key("link").begin_array();
  write_bars(json, "out", timeline.out, trace);
  write_bars(json, "in", timeline.in, trace);
  json.end_array().key("replays").begin_array();
  write_bars(json, "recompute", timeline.recompute, trace);
  json.end_array().end_object();
  return json.take();
}

// Sets the times that TORCHLMS_COSTS gives, and returns its other costs; none when it is not set.
std::optional<std::array<double, 3>> take_given_costs(Trace& trace) {
  const auto given = CostFile::from_environment();
  if (!given) {
    return std::nullopt;
  }
  given->retime(trace);
  return {{given->costs.out_bytes_per_s, given->costs.in_bytes_per_s, given->costs.latency_us}};
}

// Storages to swap, and to recompute.
using StartIds = std::pair<std::vector<StorageId>, std::vector<StorageId>>;

Start start_of(const StartIds& ids, const Trace& trace) {
  for (const std::vector<StorageId>* const part : {&ids.first, &ids.second}) {
    for (const StorageId id : *part) {
      TORCH_CHECK_VALUE(
          id >= 0 && id < static_cast<StorageId>(trace.storages.size()),
          "torchlms: storage ",
          id,
          " of a start is none of the trace");
    }
  }
  return {ids.first, ids.second};
}

std::string plan_json(
    const Trace& trace,
    Bytes budget_bytes,
    const std::string& policy,
    double out_rate,
    double in_rate,
    double latency_us,
    const std::vector<StartIds>& starts) {
  PlanRequest request;
  request.budget_bytes = budget_bytes;
  request.policy = policy_of(policy);
  for (const StartIds& ids : starts) {
    request.starts.push_back(start_of(ids, trace));
  }
  CostModel costs;
  costs.out_bytes_per_s = out_rate;
  costs.in_bytes_per_s = in_rate;
  costs.latency_us = latency_us;
  const Plan plan = make_plan(trace, costs, request);
  return R"({"plan":)" + plan.to_json() + R"(,"timeline":)" + timeline_json(trace, plan, costs) + "}";
}

} // namespace

void bind_planning(py::module_& m) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<Trace>(m, "Trace")
      .def(py::init(&load_trace), py::arg("document"))
      .def("summary_json", &summary_json, NoGil())
      .def("choices_json", &choices_json, NoGil())
      .def(
          "plan_json",
          &plan_json,
          NoGil(),
          py::kw_only(),
          py::arg("budget_bytes"),
          py::arg("policy"),
          py::arg("out_bytes_per_s"),
          py::arg("in_bytes_per_s"),
          py::arg("latency_us"),
          py::arg("starts"))
      .def("take_given_costs", &take_given_costs);
}

} // namespace torchlms
