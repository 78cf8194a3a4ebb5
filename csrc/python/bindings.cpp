// SPDX-License-Identifier: BSD-3-Clause
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "backends.h"
#include "cpu/budget_allocator.h"
#include "cpu/cpu_device.h"
#include "hooks.h"
#include "python/errors.h"
#include "python/packed_object.h"
#include "python/plan_loading.h"
#include "python/planning.h"
#include "python/policy_fn.h"
#include "python/progress.h"
#include "python/recording.h"
#include "recompute/purity.h"
#include "session.h"
#include "swap/link_probe.h"

namespace py = pybind11;

namespace torchlms {

namespace {

py::object* log_function = nullptr; // guarded by the GIL; leaked: the interpreter ends before statics do

void drain_log(Session& session) {
  for (const auto& [level, text] : session.take_log()) {
    if (log_function) {
      (*log_function)(level, text);
    }
  }
}

// Runs `call` without the GIL, then hands the log on.
template <class F>
auto released(Session& session, const F& call) {
  if constexpr (std::is_void_v<decltype(call())>) {
    {
      const py::gil_scoped_release release;
      call();
    }
    drain_log(session);
  } else {
    auto result = [&] {
      const py::gil_scoped_release release;
      return call();
    }();
    drain_log(session);
    return result;
  }
}

Policy policy_of(const std::string& name) {
  for (const Policy policy :
       {Policy::kAuto, Policy::kSwap, Policy::kRecompute, Policy::kHybrid, Policy::kOff}) {
    if (name == to_string(policy)) {
      return policy;
    }
  }
  TORCH_CHECK_VALUE(
      false, "torchlms: unknown policy \"", name, "\"; one of auto, swap, recompute, hybrid, off");
}

py::dict device_memory(const std::string& name) {
  Device& device = device_for(c10::Device(name));
  py::dict memory;
  memory["total_bytes"] = device.total_bytes();
  memory["available_bytes"] = device.available_bytes();
  memory["held_bytes"] = device.held_bytes();
  memory["cached_bytes"] = device.cached_bytes();
  return memory;
}

py::dict measure_disk_folder(const std::string& folder) {
  constexpr Bytes kProbeBytes = Bytes{128} << 20;
  DiskStore store(folder, 0);
  LinkSpeed speed;
  {
    const py::gil_scoped_release release;
    Link link(Link::Options{});
    speed = measure_disk(store, link, std::min(kProbeBytes, store.budget_bytes()));
  }
  py::dict disk;
  disk["out_bytes_per_s"] = speed.out_bytes_per_s;
  disk["in_bytes_per_s"] = speed.in_bytes_per_s;
  disk["direct"] = store.direct();
  disk["free_bytes"] = store.free_bytes();
  disk["is_memory"] = store.is_memory();
  return disk;
}

void enter(const std::shared_ptr<Session>& session) {
  const bool plans = session->wants_plan();
  if (plans) {
    show_progress(*session, "planning", 0, 1);
  }
  released(*session, [&] { enter_scope(session); });
  if (plans) {
    show_progress(*session, "planning", 1, 1);
  }
}

void bind_session(py::module_& m) {
  using SessionPtr = std::shared_ptr<Session>;
  py::class_<Session, SessionPtr>(m, "Session")
      .def(
          py::init([](const std::string& device,
                      Bytes budget_bytes,
                      const std::string& policy,
                      const py::object& ask_policy,
                      Bytes host_budget,
                      bool pin_memory,
                      std::string disk_path,
                      Bytes disk_budget,
                      double link_limit,
                      Bytes min_offload_bytes,
                      bool verify,
                      std::string name) {
            SessionOptions options;
            options.name = std::move(name);
            options.device = c10::Device(device);
            options.policy = policy_of(policy);
            if (!ask_policy.is_none()) {
              options.demand_of = demand_fn(ask_policy);
            }
            options.budget_bytes = budget_bytes;
            options.host_budget_bytes = host_budget;
            options.pin_memory = pin_memory;
            options.disk_path = std::move(disk_path);
            options.disk_budget_bytes = disk_budget;
            options.link_limit_bytes_per_s = link_limit;
            options.min_offload_bytes = min_offload_bytes;
            options.verify = verify;
            return Session::create(std::move(options));
          }),
          py::kw_only(),
          py::arg("device") = "cpu",
          py::arg("budget_bytes"),
          py::arg("policy"),
          py::arg("ask_policy"),
          py::arg("host_budget") = 0,
          py::arg("pin_memory") = true,
          py::arg("disk_path"),
          py::arg("disk_budget"),
          py::arg("link_limit"),
          py::arg("min_offload_bytes"),
          py::arg("verify"),
          py::arg("name"))
      .def("enter", &enter)
      .def("exit", [](const SessionPtr& self) { released(*self, [&] { exit_scope(self); }); })
      .def("step_boundary", [](const SessionPtr& self) { released(*self, [&] { self->step_boundary(); }); })
      .def("is_busy", &Session::is_busy)
      .def("disk_used_bytes", [](const SessionPtr& self) { return self->engine().store().used_bytes(); })
      .def("add_user", &Session::add_user)
      .def("remove_user", &Session::remove_user)
      .def(
          "report_json",
          [](const SessionPtr& self) { return released(*self, [&] { return self->report().to_json(); }); })
      .def(
          "timeline_json",
          [](const SessionPtr& self) { return released(*self, [&] { return self->timeline_json(); }); })
      .def(
          "trace_json",
          [](const SessionPtr& self) {
            return released(*self, [&] {
              const auto trace = self->latest_trace();
              return trace ? trace->to_json() : std::string();
            });
          })
      .def(
          "plan_json",
          [](const SessionPtr& self) {
            return released(*self, [&] {
              const ProgramPtr program = self->latest_program();
              return program ? program->to_json() : std::string();
            });
          })
      .def(
          "set_progress",
          [](const Session& self, py::object fn) { set_progress(self, std::move(fn)); },
          py::arg("fn"))
      .def("load_plan", [](const SessionPtr& self, const py::dict& trace, const py::dict& plan) {
        self->load(load_program(trace, plan));
      });
}

} // namespace

PYBIND11_MODULE(_C, m) {
  m.attr("built_for_torch") = TORCHLMS_BUILT_FOR;
  m.def("install", [] {
    register_cpu_device();
    BudgetAllocator::get().install();
    register_packed_type();
  });
  m.def("set_error_types", &set_error_types, py::arg("disk_error"), py::arg("budget_error"));
  m.def("set_log", [](py::object fn) { log_function = new py::object(std::move(fn)); });
  m.def("device_memory", &device_memory, py::arg("device") = "cpu");
  // Why there is no support for GPUs; "" where there is.
  m.def("load_cuda_backend", &load_cuda_backend);
  m.def("measure_disk", &measure_disk_folder, py::arg("folder"));
  m.def("abandon_scope", &abandon_scope);
  m.def("disabled_enter", &enter_disabled);
  m.def("disabled_exit", &exit_disabled);
  m.def("allow_replay", &allow_replay, py::arg("name"));
  m.def("keep", &keep_tensor, py::arg("tensor"));
  register_exception_translator();
  bind_session(m);
  bind_planning(m);
  bind_recording(m);
}

} // namespace torchlms
