// SPDX-License-Identifier: BSD-3-Clause
#include "python/plan_loading.h"

#include <c10/util/Exception.h>
#include <charconv>
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
    TORCH_CHECK_VALUE(false, "torchlms: the plan file is damaged: ", where, " is ", quoted(value));
  }
}

template <class T>
T field(const py::dict& object, const char* name) {
  TORCH_CHECK_VALUE(object.contains(name), "torchlms: the plan file is damaged: \"", name, "\" is missing");
  return cast<T>(object[name], name);
}

uint64_t hex(const std::string& text, const char* where) {
  uint64_t bits = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), bits, 16);
  TORCH_CHECK_VALUE(
      result.ec == std::errc() && result.ptr == text.data() + text.size(),
      "torchlms: the plan file is damaged: ",
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
  TORCH_CHECK_VALUE(false, "torchlms: the plan file is damaged: ", where, " is \"", text, "\"");
}

void check_id(int64_t id, size_t size, const char* where) {
  TORCH_CHECK_VALUE(
      id >= kNone && id < static_cast<int64_t>(size),
      "torchlms: the plan file is damaged: ",
      where,
      " is ",
      id,
      ", beyond the ",
      size,
      " there are");
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

StorageRecord load_storage(const py::dict& object, size_t num_events) {
  StorageRecord storage;
  storage.size_bytes = field<Bytes>(object, "size_bytes");
  storage.is_root = field<bool>(object, "is_root");
  storage.is_managed = field<bool>(object, "is_managed");
  storage.is_opaque = field<bool>(object, "is_opaque");
  storage.outlives_step = field<bool>(object, "outlives_step");
  storage.num_packs = field<int32_t>(object, "num_packs");
  storage.packed_bytes = field<Bytes>(object, "packed_bytes");
  storage.first_pack = field<EventId>(object, "first_pack");
  storage.dead = field<EventId>(object, "dead");
  storage.first_unpack = field<EventId>(object, "first_unpack");
  storage.last_unpack = field<EventId>(object, "last_unpack");
  storage.freed = field<EventId>(object, "freed");
  for (const EventId event :
       {storage.first_pack, storage.dead, storage.first_unpack, storage.last_unpack, storage.freed}) {
    check_id(event, num_events, "a storage's event");
  }
  return storage;
}

Event load_event(const py::dict& object) {
  static constexpr const char* kKinds[] = {"op", "pack", "dead", "unpack", "free"};
  Event event;
  event.kind = static_cast<EventKind>(choice(field<std::string>(object, "kind"), kKinds, "an event's kind"));
  event.subject = field<int32_t>(object, "subject");
  event.time_us = field<double>(object, "time_us");
  event.base_bytes = field<Bytes>(object, "base_bytes");
  event.base_peak_bytes = field<Bytes>(object, "base_peak_bytes");
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
    op.duration_us = field<double>(source, "duration_us");
    op.first_value = static_cast<int32_t>(trace.op_values.size());
    op.num_inputs = static_cast<int32_t>(inputs.size());
    op.num_outputs = static_cast<int32_t>(outputs.size());
    op.num_written = static_cast<int32_t>(written.size());
    op.is_replayable = field<bool>(source, "is_replayable");
    trace.op_values.insert(trace.op_values.end(), inputs.begin(), inputs.end());
    trace.op_values.insert(trace.op_values.end(), outputs.begin(), outputs.end());
    trace.op_values.insert(trace.op_values.end(), written.begin(), written.end());
    trace.ops.push_back(op);
  }
}

Trace load_trace(const py::dict& object) {
  check_version(object, "torchlms.trace", Trace::kFormatVersion);
  Trace trace;
  load_ops(object, trace);
  for (const py::handle& item : field<py::list>(object, "values")) {
    const auto source = cast<py::dict>(item, "a value");
    Value value;
    value.storage = field<StorageId>(source, "storage");
    value.offset_bytes = field<Bytes>(source, "offset_bytes");
    value.size_bytes = field<Bytes>(source, "size_bytes");
    value.version = field<int32_t>(source, "version");
    value.producer = field<OpId>(source, "producer");
    value.is_final = field<bool>(source, "is_final");
    trace.values.push_back(value);
  }
  for (const py::handle& item : field<py::list>(object, "events")) {
    trace.events.push_back(load_event(cast<py::dict>(item, "an event")));
  }
  for (const py::handle& item : field<py::list>(object, "storages")) {
    trace.storages.push_back(load_storage(cast<py::dict>(item, "a storage"), trace.events.size()));
  }
  for (const py::handle& item : field<py::list>(object, "prefix_signatures")) {
    trace.prefix_signatures.push_back(hex(cast<std::string>(item, "a signature"), "a signature"));
  }
  for (const Event& event : trace.events) {
    check_id(
        event.subject,
        event.kind == EventKind::kOp ? trace.ops.size() : trace.storages.size(),
        "an event's subject");
  }
  trace.forward_end = field<EventId>(object, "forward_end");
  check_id(trace.forward_end, trace.events.size() + 1, "forward_end");
  trace.entry_bytes = field<Bytes>(object, "entry_bytes");
  trace.backward_peak_node = field<std::string>(object, "backward_peak_node");
  TORCH_CHECK_VALUE(
      trace.prefix_signatures.size() == trace.ops.size(),
      "torchlms: the plan file is damaged: ",
      trace.ops.size(),
      " ops but ",
      trace.prefix_signatures.size(),
      " signatures");
  return trace;
}

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
