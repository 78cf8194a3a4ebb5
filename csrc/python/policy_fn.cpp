// SPDX-License-Identifier: BSD-3-Clause
#include "python/policy_fn.h"

#include <memory>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <utility>

#include "recompute/purity.h"

namespace py = pybind11;

namespace torchlms {

namespace {

// As __torch_dispatch__ gets them: keyword-only arguments by name, and none that has its default at the end.
std::pair<py::tuple, py::dict> python_arguments(
    const c10::FunctionSchema& schema, const std::vector<c10::IValue>& values) {
  const auto is_default = [&](size_t i) {
    const auto& value = schema.arguments()[i].default_value();
    return value && value->type()->kind() == values[i].type()->kind() && *value == values[i];
  };
  size_t num_positional = 0;
  while (num_positional < values.size() && !schema.arguments()[num_positional].kwarg_only()) {
    ++num_positional;
  }
  py::dict kwargs;
  for (size_t i = num_positional; i < values.size(); ++i) {
    if (!is_default(i)) {
      kwargs[py::str(schema.arguments()[i].name())] = torch::jit::toPyObject(values[i]);
    }
  }
  while (num_positional > 0 && is_default(num_positional - 1)) {
    --num_positional;
  }
  py::tuple args(num_positional);
  for (size_t i = 0; i < num_positional; ++i) {
    args[i] = torch::jit::toPyObject(values[i]);
  }
  return {std::move(args), std::move(kwargs)};
}

py::object python_output(const std::vector<c10::IValue>& outputs) {
  if (outputs.size() == 1) {
    return torch::jit::toPyObject(outputs[0]);
  }
  py::tuple all(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    all[i] = torch::jit::toPyObject(outputs[i]);
  }
  return all;
}

Demand demand_named(const std::string& name) {
  if (name == "save") {
    return Demand::kSave;
  }
  if (name == "recompute") {
    return Demand::kRecompute;
  }
  return name == "swap" ? Demand::kSwap : Demand::kNone;
}

} // namespace

DemandFn demand_fn(py::object ask) {
  const std::shared_ptr<py::object> function(new py::object(std::move(ask)), [](py::object* object) {
    const py::gil_scoped_acquire gil;
    delete object;
  });
  return [function](
             const OpName& op,
             const std::vector<c10::IValue>& arguments,
             const std::vector<c10::IValue>& outputs) {
    const py::gil_scoped_acquire gil;
    const c10::FunctionSchema& schema = op.traits->handle.schema();
    const auto [args, kwargs] = python_arguments(schema, arguments);
    return demand_named(
        (*function)(schema.name(), schema.overload_name(), args, kwargs, python_output(outputs))
            .cast<std::string>());
  };
}

} // namespace torchlms
