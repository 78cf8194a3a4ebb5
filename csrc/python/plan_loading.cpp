// SPDX-License-Identifier: BSD-3-Clause
#include "python/plan_loading.h"

#include <algorithm>
#include <c10/util/Exception.h>
#include <charconv>
#include <cmath>
#include <pybind11/stl.h>

#include "plan/validator.h"
#include "trace/json.h"

namespace py = pybind11;

namespace torchlms {

namespace {

std::string quoted(const py::handle& value) {
  std::string text = py::repr(value);
  return text.size() > 60 ? text.substr(0, 60) + "..." : text;
}

template <class T>
T cast(const py::handle& value, const std::string& where) {
  try {
    return value.cast<T>();
  } catch (const py::cast_error&) {
    TORCH_CHECK_VALUE(false, "torchlms: the file is damaged: ", where, " is ", quoted(value));
  }
}

template <class T>
T field(const py::dict& object, const char* name) {
  TORCH_CHECK_VALUE(object.contains(name), "torchlms: the file is damaged: \"", name, "\" is missing");
  return cast<T>(object[name], name);
}

uint64_t hex(const std::string& text, const char* where) {
  uint64_t bits = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), bits, 16);
  TORCH_CHECK_VALUE(
      result.ec == std::errc() && result.ptr == text.data() + text.size(),
      "torchlms: the file is damaged: ",
      where,
      " is \"",
      text,
      "\", not a hexadecimal number");
  return bits;
}

template <size_t N>
int choice(const std::string& text, const char* const (&names)[N], const char* where) {
  for (size_t i = 0; i < N; ++i) {
    if (text == names[i]) {
      return static_cast<int>(i);
    }
  }
  TORCH_CHECK_VALUE(false, "torchlms: the file is damaged: ", where, " is \"", text, "\"");
}

void check_range(int64_t id, int64_t first, size_t end, const char* where) {
  TORCH_CHECK_VALUE(
      id >= first && id < static_cast<int64_t>(end),
      "torchlms: the file is damaged: ",
      where,
      " is ",
      id,
      ", beyond the ",
      end,
      " there are");
}

void check_index(int64_t id, size_t size, const char* where) {
  check_range(id, 0, size, where);
}

void check_id(int64_t id, size_t size, const char* where) {
  check_range(id, kNone, size, where);
}

// No sum of so many bytes overflows.
Bytes bytes_field(const py::dict& object, const char* name) {
  constexpr Bytes kMost = Bytes{1} << 48;
  const auto bytes = field<Bytes>(object, name);
  TORCH_CHECK_VALUE(
      bytes >= 0 && bytes <= kMost,
      "torchlms: the file is damaged: ",
      name,
      " is ",
      bytes,
      ", no size in bytes");
  return bytes;
}

double time_field(const py::dict& object, const char* name) {
  const auto time_us = field<double>(object, name);
  TORCH_CHECK_VALUE(
      std::isfinite(time_us) && time_us >= 0,
      "torchlms: the file is damaged: ",
      name,
      " is ",
      quoted(object[name]),
      ", no time");
  return time_us;
}

void check_version(const py::dict& object, const char* format, int version) {
  const auto found_format = field<std::string>(object, "format");
  const auto found_version = field<int>(object, "version");
  TORCH_CHECK_VALUE(
      found_format == format && found_version == version,
      "torchlms: expected ",
      format,
      " version ",
      version,
      ", found ",
      found_format,
      " version ",
      found_version);
}

// Where something happened to a storage: that event, or kNone.
EventId position(
    const py::dict& object,
    const char* name,
    EventKind kind,
    StorageId storage,
    const std::vector<Event>& events) {
  const auto id = field<EventId>(object, name);
  check_id(id, events.size(), "a storage's event");
  TORCH_CHECK_VALUE(
      id == kNone || (events[id].kind == kind && events[id].subject == storage),
      "torchlms: the file is damaged: ",
      name,
      " of storage ",
      storage,
      " is ",
      id,
      ", where something else happened");
  return id;
}

StorageRecord load_storage(const py::dict& object, StorageId id, const std::vector<Event>& events) {
  StorageRecord storage;
  storage.size_bytes = bytes_field(object, "size_bytes");
  storage.is_root = field<bool>(object, "is_root");
  storage.is_managed = field<bool>(object, "is_managed");
  storage.is_opaque = field<bool>(object, "is_opaque");
  storage.outlives_step = field<bool>(object, "outlives_step");
  storage.num_packs = field<int32_t>(object, "num_packs");
  storage.packed_bytes = bytes_field(object, "packed_bytes");
  storage.first_pack = position(object, "first_pack", EventKind::kPack, id, events);
  storage.dead = position(object, "dead", EventKind::kDead, id, events);
  storage.first_unpack = position(object, "first_unpack", EventKind::kUnpack, id, events);
  storage.last_unpack = position(object, "last_unpack", EventKind::kUnpack, id, events);
  storage.freed = position(object, "freed", EventKind::kFree, id, events);
  return storage;
}

Event load_event(const py::dict& object) {
  static constexpr const char* kKinds[] = {"op", "pack", "dead", "unpack", "free"};
  Event event;
  event.kind = static_cast<EventKind>(choice(field<std::string>(object, "kind"), kKinds, "an event's kind"));
  event.subject = field<int32_t>(object, "subject");
  event.time_us = time_field(object, "time_us");
  event.base_bytes = bytes_field(object, "base_bytes");
  event.base_peak_bytes = bytes_field(object, "base_peak_bytes");
  return event;
}

void load_ops(const py::dict& object, Trace& trace) {
  for (const py::handle& item : field<py::list>(object, "ops")) {
    const auto source = cast<py::dict>(item, "an op");
    const auto inputs = field<std::vector<ValueId>>(source, "inputs");
    const auto outputs = field<std::vector<ValueId>>(source, "outputs");
    const auto written = field<std::vector<ValueId>>(source, "written");
    Op op;
    op.name = static_cast<int32_t>(trace.op_names.size());
    trace.op_names.push_back(field<std::string>(source, "name"));
    op.signature = hex(field<std::string>(source, "signature"), "an op's signature");
    op.duration_us = time_field(source, "duration_us");
    op.first_value = static_cast<int32_t>(trace.op_values.size());
    op.num_inputs = static_cast<int32_t>(inputs.size());
    op.num_outputs = static_cast<int32_t>(outputs.size());
    op.num_written = static_cast<int32_t>(written.size());
    op.is_replayable = field<bool>(source, "is_replayable");
    if (source.contains("demand")) {
      static constexpr const char* kDemands[] = {"none", "save", "recompute", "swap"};
      op.demand =
          static_cast<Demand>(choice(field<std::string>(source, "demand"), kDemands, "an op's demand"));
    }
    trace.op_values.insert(trace.op_values.end(), inputs.begin(), inputs.end());
    trace.op_values.insert(trace.op_values.end(), outputs.begin(), outputs.end());
    trace.op_values.insert(trace.op_values.end(), written.begin(), written.end());
    trace.ops.push_back(op);
  }
}

void load_values(const py::dict& object, Trace& trace) {
  const size_t num_storages = field<py::list>(object, "storages").size();
  for (const py::handle& item : field<py::list>(object, "values")) {
    const auto source = cast<py::dict>(item, "a value");
    Value value;
    value.storage = field<StorageId>(source, "storage");
    check_index(value.storage, num_storages, "a value's storage");
    value.offset_bytes = bytes_field(source, "offset_bytes");
    value.size_bytes = bytes_field(source, "size_bytes");
    value.version = field<int32_t>(source, "version");
    value.producer = field<OpId>(source, "producer");
    check_id(value.producer, trace.ops.size(), "a value's producer");
    value.is_final = field<bool>(source, "is_final");
    trace.values.push_back(value);
  }
  for (const ValueId value : trace.op_values) {
    check_index(value, trace.values.size(), "an op's value");
  }
}

void load_events(const py::dict& object, Trace& trace) {
  const size_t num_storages = field<py::list>(object, "storages").size();
  OpId num_ops = 0;
  for (const py::handle& item : field<py::list>(object, "events")) {
    const Event event = load_event(cast<py::dict>(item, "an event"));
    if (event.kind == EventKind::kOp) {
      check_range(event.subject, num_ops, std::min<size_t>(num_ops + 1, trace.ops.size()), "an event's op");
      ++num_ops;
    } else {
      check_index(event.subject, num_storages, "an event's storage");
    }
    trace.events.push_back(event);
  }
  TORCH_CHECK_VALUE(
      num_ops == static_cast<OpId>(trace.ops.size()) && trace.prefix_signatures.size() == trace.ops.size(),
      "torchlms: the file is damaged: ",
      trace.ops.size(),
      " ops but ",
      num_ops,
      " events of ops and ",
      trace.prefix_signatures.size(),
      " signatures");
}

} // namespace

Trace load_trace(const py::dict& object) {
  check_version(object, "torchlms.trace", Trace::kFormatVersion);
  Trace trace;
  load_ops(object, trace);
  load_values(object, trace);
  for (const py::handle& item : field<py::list>(object, "prefix_signatures")) {
    trace.prefix_signatures.push_back(hex(cast<std::string>(item, "a signature"), "a signature"));
  }
  load_events(object, trace);
  for (const py::handle& item : field<py::list>(object, "storages")) {
    const auto id = static_cast<StorageId>(trace.storages.size());
    trace.storages.push_back(load_storage(cast<py::dict>(item, "a storage"), id, trace.events));
  }
  trace.forward_end = field<EventId>(object, "forward_end");
  check_index(trace.forward_end, trace.events.size() + 1, "forward_end");
  trace.entry_bytes = bytes_field(object, "entry_bytes");
  trace.backward_peak_node = field<std::string>(object, "backward_peak_node");
  return trace;
}

namespace {

Plan load_plan(const py::dict& object, const Trace& trace) {
  static constexpr const char* kKinds[] = {"keep", "swap", "recompute"};
  check_version(object, "torchlms.plan", Plan::kFormatVersion);
  Plan plan;
  plan.policy = field<std::string>(object, "policy");
  plan.signature = hex(field<std::string>(object, "signature"), "the plan's signature");
  plan.budget_bytes = field<Bytes>(object, "budget_bytes");
  plan.base_delta_bytes = field<Bytes>(object, "base_delta_bytes");
  for (const py::handle& item : field<py::list>(object, "actions")) {
    const auto source = cast<py::dict>(item, "an action");
    Action action;
    action.kind =
        static_cast<ActionKind>(choice(field<std::string>(source, "kind"), kKinds, "an action's kind"));
    action.swap_out = field<EventId>(source, "swap_out");
    action.release = field<EventId>(source, "release");
    action.swap_in = field<EventId>(source, "swap_in");
    plan.actions.push_back(action);
  }
  plan.swap_in_order = field<std::vector<StorageId>>(object, "swap_in_order");
  plan.fits = field<bool>(object, "fits");
  plan.predicted_peak_bytes = field<Bytes>(object, "predicted_peak_bytes");
  plan.predicted_step_us = field<double>(object, "predicted_step_us");
  plan.predicted_stall_us = field<double>(object, "predicted_stall_us");
  plan.predicted_recompute_us = field<double>(object, "predicted_recompute_us");
  plan.lower_bound_us = field<double>(object, "lower_bound_us");
  plan.floor_bytes = field<Bytes>(object, "floor_bytes");
  plan.floor_op = field<std::string>(object, "floor_op");
  TORCH_CHECK_VALUE(
      plan.signature == trace.signature() && plan.actions.size() == trace.storages.size(),
      "torchlms: the plan and the trace in this file are not of the same program");
  const auto broken = validate(trace, plan);
  TORCH_CHECK_VALUE(!broken, "torchlms: the plan in this file cannot be followed: ", *broken);
  return plan;
}

} // namespace

ProgramPtr load_program(const py::dict& trace_object, const py::dict& plan_object) {
  Trace trace = load_trace(trace_object);
  Plan plan = load_plan(plan_object, trace);
  const Bytes entry_bytes = trace.entry_bytes + plan.base_delta_bytes;
  return std::make_shared<const Program>(
      std::move(trace), std::move(plan), std::vector<uint64_t>(), entry_bytes, /*has_room=*/false);
}

} // namespace torchlms
