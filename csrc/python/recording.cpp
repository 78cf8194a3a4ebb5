// SPDX-License-Identifier: BSD-3-Clause
#include "python/recording.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <pybind11/stl.h>
#include <string>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <utility>
#include <vector>

#include "recompute/purity.h"
#include "trace/recorder.h"

namespace py = pybind11;

namespace torchlms {

namespace {

using Values = std::vector<ValueId>;

OpId add_op(
    Recorder& recorder,
    const std::string& name,
    uint64_t signature,
    double duration_us,
    const Values& inputs,
    const Values& outputs,
    const Values& written,
    bool is_replayable,
    double time_us,
    Bytes base_bytes,
    Bytes base_peak_bytes) {
  return recorder.add_op(
      {.name = name,
       .signature = signature,
       .duration_us = duration_us,
       .inputs = inputs,
       .outputs = outputs,
       .written = written,
       .is_replayable = is_replayable},
      time_us,
      base_bytes,
      base_peak_bytes);
}

// older_bytes: held all the time by storages that were alive at entry, and not counted in the bases so far.
std::string finish_json(Recorder& recorder, Bytes older_bytes) {
  Trace trace = recorder.finish();
  trace.entry_bytes += older_bytes;
  for (Event& event : trace.events) {
    event.base_bytes += older_bytes;
    event.base_peak_bytes += older_bytes;
  }
  return trace.to_json();
}

// Whether this call may run again, and the positions of the arguments that it writes.
std::pair<bool, std::vector<size_t>> purity_of(
    const std::string& name, const std::string& overload, const py::args& args, const py::kwargs& kwargs) {
  const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  const torch::jit::Stack stack =
      torch::jit::createStackForSchema(op.schema(), torch::jit::tuple_slice(args), kwargs, std::nullopt);
  const c10::ArrayRef<const c10::IValue> arguments(stack.data(), stack.size());
  const OperatorTraits traits(op);
  const uint64_t mask = written_args(traits, arguments);
  std::vector<size_t> written;
  for (size_t i = 0; i < stack.size() && i < 64; ++i) {
    if ((mask >> i & 1) != 0) {
      written.push_back(i);
    }
  }
  return {is_replayable(traits, arguments), written};
}

} // namespace

void bind_recording(py::module_& m) {
  m.def("purity_of", &purity_of, py::arg("name"), py::arg("overload"));
  py::enum_<EventKind>(m, "EventKind")
      .value("PACK", EventKind::kPack)
      .value("DEAD", EventKind::kDead)
      .value("UNPACK", EventKind::kUnpack)
      .value("FREE", EventKind::kFree);
  py::class_<Recorder>(m, "Recorder")
      .def(py::init<>())
      .def("add_storage", &Recorder::add_storage, py::arg("size_bytes"), py::arg("is_root"))
      .def(
          "add_value",
          &Recorder::add_value,
          py::arg("storage"),
          py::arg("offset_bytes"),
          py::arg("size_bytes"),
          py::arg("version"),
          py::arg("producer"))
      .def(
          "add_op",
          &add_op,
          py::kw_only(),
          py::arg("name"),
          py::arg("signature"),
          py::arg("duration_us"),
          py::arg("inputs"),
          py::arg("outputs"),
          py::arg("written"),
          py::arg("is_replayable"),
          py::arg("time_us"),
          py::arg("base_bytes"),
          py::arg("base_peak_bytes"))
      .def(
          "add_event",
          &Recorder::add_event,
          py::arg("kind"),
          py::arg("storage"),
          py::kw_only(),
          py::arg("time_us"),
          py::arg("base_bytes"),
          py::arg("base_peak_bytes"))
      .def("set_managed", &Recorder::set_managed, py::arg("storage"))
      .def("set_opaque", &Recorder::set_opaque, py::arg("storage"))
      .def("set_outlives_step", &Recorder::set_outlives_step, py::arg("storage"))
      .def("set_changed", &Recorder::set_changed, py::arg("value"))
      .def("add_packed_bytes", &Recorder::add_packed_bytes, py::arg("storage"), py::arg("size_bytes"))
      .def("set_backward_node", &Recorder::set_backward_node, py::arg("name"))
      .def("end_forward", &Recorder::end_forward)
      .def("finish_json", &finish_json, py::arg("older_bytes"));
}

} // namespace torchlms
