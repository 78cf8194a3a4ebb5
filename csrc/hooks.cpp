// SPDX-License-Identifier: BSD-3-Clause
#include "hooks.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <atomic>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/Type.h>
#include <cstring>
#include <optional>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <typeinfo>

#include "forked.h"
#include "recompute/purity.h"
#include "signature.h"

namespace torchlms {

namespace {

// What one thread has open.
struct ThreadScope {
  std::shared_ptr<Session> session;
  TapePtr tape;
  HookFrontend* frontend = nullptr;
  int num_entries = 0;
  int num_disabled = 0;
  bool has_hooks = false;
  bool wants_hooks = false; // has to push them: the tape left a watched program, or a disabled region ended
  size_t stack_size = 0; // of the thread's hook stack at entry
  std::optional<at::CallbackHandle> observer;
  std::vector<OpFrame> frames; // ops that have started; the first num_frames are in use
  size_t num_frames = 0;
  bool observes_ends = false;
  bool is_busy = false; // torchlms itself is running: nothing is observed
};
thread_local ThreadScope scope;

std::atomic<HookFrontend*> registered_frontend{nullptr};

struct StartedOp : at::ObserverContext {
  explicit StartedOp(size_t frame) : frame(frame) {}
  const size_t frame;
};

// Operators by the address of their name. An address may come to hold another name, so the text is
// compared; events without a schema (Python functions, profiler ranges) map to null.
const OpName* name_of(const at::RecordFunction& fn) {
  struct Known {
    std::string name;
    std::string overload;
    std::unique_ptr<OpName> op;
  };
  thread_local ska::flat_hash_map<const char*, Known> known_ops;
  const char* name = fn.name();
  const char* overload = fn.overload_name();
  Known& known = known_ops[overload && *overload ? overload : name];
  if (known.name != name || known.overload != (overload ? overload : "")) {
    known.name = name;
    known.overload = overload ? overload : "";
    known.op = nullptr;
    if (fn.operator_name()) {
      known.op = std::make_unique<OpName>();
      known.op->name = known.overload.empty() ? known.name : known.name + "." + known.overload;
      known.op->signature = signature_of(known.op->name);
      if (const auto handle = c10::Dispatcher::singleton().findSchema(*fn.operator_name())) {
        known.op->traits = std::make_shared<const OperatorTraits>(*handle);
      }
    }
  }
  return known.op.get();
}

void push_hooks() {
  scope.frontend->push(scope.stack_size); // below what came later, so that each closes in its order
  scope.has_hooks = true;
}

void remove_hooks() {
  scope.has_hooks = false;
  scope.frontend->remove();
}

void observe(bool ends);

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  if (!scope.tape || scope.is_busy || scope.num_disabled > 0 || in_forked_child() ||
      c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradFunctionality)) {
    return nullptr;
  }
  const OpName* op = name_of(fn);
  if (!op || scope.tape->is_captured()) {
    return nullptr;
  }
  if (!c10::GradMode::is_enabled()) {
    if (op->traits && op->traits->written_args != 0) {
      scope.tape->note_unseen_write(*op->traits, fn.inputs());
    }
    return nullptr;
  }
  if (scope.num_frames > 0) {
    scope.frames[scope.num_frames - 1].has_inner = true;
  }
  if (scope.num_frames == scope.frames.size()) {
    scope.frames.emplace_back();
  }
  OpFrame& frame = scope.frames[scope.num_frames];
  frame.op = op;
  frame.has_inner = false;
  scope.is_busy = true;
  const auto idle = c10::make_scope_exit([] { scope.is_busy = false; });
  if (scope.session->options().demand_of) {
    frame.arguments.assign(fn.inputs().begin(), fn.inputs().end());
  }
  const bool ends_go_unseen = !scope.observes_ends;
  if (!scope.tape->op_started(frame, fn.inputs())) {
    if (ends_go_unseen) {
      observe(/*ends=*/true); // from the next op on: the step is a partial record
    }
    scope.wants_hooks = true;
  }
  if (scope.wants_hooks && !scope.has_hooks) {
    push_hooks();
    scope.wants_hooks = false;
  }
  if (scope.tape->mode() == Tape::Mode::kWatching) {
    if (scope.observes_ends) {
      observe(/*ends=*/false); // the step began as expected; a change from here on is no new beginning
    }
    return nullptr;
  }
  return std::make_unique<StartedOp>(scope.num_frames++);
}

void on_end(const at::RecordFunction& fn, at::ObserverContext* context) {
  if (!context || !scope.tape || in_forked_child()) {
    return;
  }
  const size_t index = static_cast<StartedOp*>(context)->frame;
  scope.num_frames = std::min(scope.num_frames, index);
  OpFrame& frame = scope.frames[index];
  const std::vector<c10::IValue> arguments = std::exchange(frame.arguments, {});
  scope.is_busy = true;
  const auto idle = c10::make_scope_exit([] { scope.is_busy = false; });
  if ((frame.has_inner || fn.outputs().empty()) && !scope.tape->wrote_itself(frame)) {
    frame.record = nullptr;
    return; // a composite, or an op that failed
  }
  if (fn.outputs().empty()) {
    frame.is_replayable = false;
    frame.record = nullptr;
  }
  frame.demand = Demand::kNone;
  if (scope.session->options().demand_of && frame.op->traits) {
    frame.demand = scope.session->demand_of(*frame.op, arguments, fn.outputs());
  }
  scope.tape->op_ended(frame, fn.outputs());
}

void observe(bool ends) {
  if (scope.observer) {
    at::removeCallback(*scope.observer);
  }
  at::RecordFunctionCallback callback(on_start, ends ? on_end : nullptr);
  scope.observes_ends = ends;
  callback.needsInputs(true).needsOutputs(ends).scopes({at::RecordScope::FUNCTION});
  scope.observer = at::addThreadLocalCallback(callback);
}

// What runs on this thread, for error messages.
std::string operation() {
  if (scope.num_frames > 0) {
    return scope.frames[scope.num_frames - 1].op->name;
  }
  const auto node = torch::autograd::get_current_node();
  return node ? node->name() : std::string();
}

void end_scope() {
  const TapePtr tape = std::exchange(scope.tape, nullptr);
  const std::shared_ptr<Session> session = std::exchange(scope.session, nullptr);
  if (scope.observer) {
    at::removeCallback(*scope.observer);
    scope.observer.reset();
  }
  if (scope.has_hooks) {
    remove_hooks();
  }
  scope.wants_hooks = false;
  scope.num_frames = 0;
  for (OpFrame& frame : scope.frames) {
    frame.record = nullptr; // of an op that is not over
  }
  if (in_forked_child()) {
    // The parent's locks may be held for ever here, by threads that were not forked.
    new TapePtr(tape);
    new std::shared_ptr<Session>(session);
  } else if (tape) {
    session->close_tape(tape);
  }
}

} // namespace

void set_hook_frontend(HookFrontend* frontend) {
  Session::set_operation_namer(operation);
  registered_frontend = frontend;
}

HookFrontend* hook_frontend() {
  return registered_frontend;
}

void enter_scope(const std::shared_ptr<Session>& session) {
  if (scope.num_entries > 0) {
    TORCH_CHECK_VALUE(
        scope.session == session,
        "torchlms: offload(",
        session->options().name,
        ") was entered inside an open offload(",
        scope.session->options().name,
        "); nested scopes must have equal settings");
    ++scope.num_entries;
    return;
  }
  HookFrontend* frontend = hook_frontend();
  TORCH_INTERNAL_ASSERT(frontend, "torchlms: no hook frontend is registered");
  frontend->check();
  TapePtr tape = session->open_tape();
  scope.session = session;
  scope.frontend = frontend;
  scope.num_entries = 1;
  if (!tape || !frontend->may_push()) {
    if (tape) {
      session->close_tape(tape);
    }
    return;
  }
  scope.tape = std::move(tape);
  scope.stack_size = frontend->depth();
  observe(/*ends=*/true);
  if (scope.tape->mode() != Tape::Mode::kWatching) {
    if (scope.num_disabled == 0) {
      push_hooks();
    } else {
      scope.wants_hooks = true;
    }
  }
}

void exit_scope(const std::shared_ptr<Session>& session) {
  if (scope.num_entries == 0 || scope.session != session || --scope.num_entries > 0) {
    return;
  }
  end_scope();
  session->rethrow_demand_error();
}

void abandon_scope() {
  if (scope.num_entries > 0) {
    scope.num_entries = 0;
    end_scope();
  }
}

void enter_disabled() {
  if (scope.num_disabled++ == 0 && scope.has_hooks) {
    remove_hooks();
    scope.wants_hooks = true;
  }
}

void exit_disabled() {
  if (scope.num_disabled > 0 && --scope.num_disabled == 0 && scope.wants_hooks && scope.tape) {
    push_hooks();
    scope.wants_hooks = false;
  }
}

Tape* current_tape() {
  return scope.num_disabled > 0 || in_forked_child() ? nullptr : scope.tape.get();
}

std::unique_ptr<Packed> pack_for_current_scope(const at::Tensor& tensor, bool is_plain, bool keep) {
  Tape* tape = current_tape();
  if (!tape) {
    return nullptr;
  }
  tape->session().rethrow_error();
  auto packed = is_plain ? tape->pack(tensor, keep) : nullptr;
  if (!packed) {
    tape->count_not_planned("kind of tensor");
  }
  return packed;
}

CopyOut copy_out_for_current_node() {
  // Nodes of PyTorch's own derivatives never hand back or write what they were given; a custom
  // Function may. Node is the base of all of them: its name() is the demangled type.
  const auto node = torch::autograd::get_current_node();
  if (!node) {
    return CopyOut::kNever;
  }
  const torch::autograd::Node& current = *node;
  if (std::strstr(typeid(current).name(), "torch8autograd9generated") != nullptr) {
    return CopyOut::kNever;
  }
  return torch::autograd::get_current_graph_task_keep_graph() ? CopyOut::kAlways : CopyOut::kIfShared;
}

} // namespace torchlms
