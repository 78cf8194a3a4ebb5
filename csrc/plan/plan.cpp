// SPDX-License-Identifier: BSD-3-Clause
#include "plan/plan.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "trace/json.h"

namespace torchlms {

namespace {

std::string_view to_string(ActionKind kind) {
  switch (kind) {
    case ActionKind::kKeep:
      return "keep";
    case ActionKind::kSwap:
      return "swap";
    case ActionKind::kRecompute:
      return "recompute";
  }
  return "";
}

std::string_view to_string(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return "device";
    case Tier::kHost:
      return "host";
    case Tier::kDisk:
      return "disk";
  }
  return "";
}

std::string mebibytes(Bytes size) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.2f MiB", static_cast<double>(size) / (1 << 20));
  return text;
}

std::string milliseconds(double time_us) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.2f ms", time_us / 1e3);
  return text;
}

std::string position(EventId event) {
  return event == kNone ? "never" : "@" + std::to_string(event);
}

std::string line(StorageId id, const StorageRecord& storage, const Action& action) {
  std::string text = "storage " + std::to_string(id) + "  " + mebibytes(storage.size_bytes) + "  ";
  if (action.kind == ActionKind::kKeep) {
    return text + "keep\n";
  }
  if (action.kind == ActionKind::kRecompute) {
    return text + "recompute  drop " + position(storage.dead) + "  used " + position(storage.first_unpack) +
        "\n";
  }
  return text + "swap to " + std::string(to_string(action.tier)) + "  out " + position(action.swap_out) +
      "  free by " + position(action.release) + "  in " + position(action.swap_in) + "  used " +
      position(storage.first_unpack) + "\n";
}

Bytes bytes_of(ActionKind kind, const Plan& plan, const Trace& trace) {
  Bytes bytes = 0;
  for (size_t i = 0; i < plan.actions.size(); ++i) {
    bytes += plan.actions[i].kind == kind ? trace.storages[i].size_bytes : 0;
  }
  return bytes;
}

} // namespace

bool Plan::moves_nothing() const {
  return std::none_of(
      actions.begin(), actions.end(), [](const Action& action) { return action.kind != ActionKind::kKeep; });
}

Bytes Plan::swapped_bytes(const Trace& trace) const {
  return bytes_of(ActionKind::kSwap, *this, trace);
}

Bytes Plan::recomputed_bytes(const Trace& trace) const {
  return bytes_of(ActionKind::kRecompute, *this, trace);
}

std::string Plan::to_json() const {
  JsonWriter json;
  json.begin_object()
      .field("format", "torchlms.plan")
      .field("version", kFormatVersion)
      .field("policy", policy)
      .field("start", start)
      .key("signature")
      .hex(signature);
  json.field("budget_bytes", budget_bytes).field("base_delta_bytes", base_delta_bytes);
  json.key("actions").begin_array();
  for (const Action& action : actions) {
    json.begin_object()
        .field("kind", to_string(action.kind))
        .field("tier", to_string(action.tier))
        .field("swap_out", action.swap_out)
        .field("release", action.release)
        .field("swap_in", action.swap_in)
        .end_object();
  }
  json.end_array();
  json.key("swap_in_order").begin_array();
  for (const StorageId storage : swap_in_order) {
    json.value(storage);
  }
  json.end_array();
  json.field("fits", fits)
      .field("predicted_peak_bytes", predicted_peak_bytes)
      .field("predicted_step_us", predicted_step_us)
      .field("predicted_stall_us", predicted_stall_us)
      .field("predicted_recompute_us", predicted_recompute_us)
      .field("lower_bound_us", lower_bound_us)
      .field("floor_bytes", floor_bytes)
      .field("floor_op", floor_op)
      .end_object();
  return json.take();
}

std::string Plan::to_text(const Trace& trace) const {
  std::string text = "policy " + policy + ", budget " + mebibytes(budget_bytes) +
      (fits ? "" : " (too small)") + ", smallest possible " + mebibytes(floor_bytes) + " at " + floor_op +
      "\n" + "peak " + mebibytes(predicted_peak_bytes) + ", step " + milliseconds(predicted_step_us) +
      " (at least " + milliseconds(lower_bound_us) + ") of which " + milliseconds(predicted_stall_us) +
      " waiting and " + milliseconds(predicted_recompute_us) + " recomputing, " +
      mebibytes(swapped_bytes(trace)) + " swapped, " + mebibytes(recomputed_bytes(trace)) + " recomputed\n";
  for (size_t i = 0; i < actions.size(); ++i) {
    if (trace.storages[i].is_managed) {
      text += line(static_cast<StorageId>(i), trace.storages[i], actions[i]);
    }
  }
  return text;
}

} // namespace torchlms
