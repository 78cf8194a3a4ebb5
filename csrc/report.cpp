// SPDX-License-Identifier: BSD-3-Clause
#include "report.h"

#include "trace/json.h"

namespace torchlms {

namespace {

template <class T>
void optional_field(JsonWriter& json, const char* name, const std::optional<T>& content) {
  json.key(name);
  if (content) {
    json.value(*content);
  } else {
    json.null();
  }
}

void link_field(JsonWriter& json, const char* name, const Report::LinkUse& use) {
  json.key(name)
      .begin_object()
      .field("bytes", use.bytes)
      .field("busy_us", use.busy_us)
      .field("bandwidth_bytes_per_s", use.bandwidth_bytes_per_s)
      .field("late", use.late)
      .field("wait_us_p50", use.wait_us_p50)
      .field("wait_us_p99", use.wait_us_p99)
      .end_object();
}

} // namespace

std::string Report::to_json() const {
  JsonWriter json;
  json.begin_object().field("step", step).field("state", state).field("policy", policy);
  json.field("budget_bytes", budget_bytes).field("peak_bytes", peak_bytes);
  optional_field(json, "unlimited_peak_bytes", unlimited_peak_bytes);
  optional_field(json, "predicted_peak_bytes", predicted_peak_bytes);
  optional_field(json, "predicted_step_us", predicted_step_us);
  optional_field(json, "measured_step_us", measured_step_us);
  optional_field(json, "lower_bound_us", lower_bound_us);
  optional_field(json, "floor_bytes", floor_bytes);
  optional_field(json, "floor_op", floor_op);
  json.field("saved_bytes", saved_bytes)
      .field("kept_bytes", kept_bytes)
      .field("swapped_bytes", swapped_bytes)
      .field("recomputed_bytes", recomputed_bytes)
      .field("deduplicated_bytes", deduplicated_bytes)
      .field("stall_us", stall_us)
      .field("recompute_us", recompute_us)
      .field("plan_us", plan_us);
  json.key("link").begin_object();
  link_field(json, "out", out);
  link_field(json, "in", in);
  json.end_object()
      .field("disk_bytes", disk_bytes)
      .field("disk_written_total_bytes", disk_written_total_bytes)
      .field("host_bytes", host_bytes)
      .field("uncounted_bytes", uncounted_bytes)
      .field("evictions", num_evictions);
  json.key("not_planned").begin_object();
  for (const auto& [reason, count] : not_planned) {
    json.field(reason, count);
  }
  json.end_object().end_object();
  return json.take();
}

} // namespace torchlms
