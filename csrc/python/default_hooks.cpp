// SPDX-License-Identifier: BSD-3-Clause
#include "python/default_hooks.h"

#include <ATen/SavedTensorHooks.h>
#include <c10/core/SafePyObject.h>
#include <stack>
#include <torch/csrc/PyInterpreter.h>
#include <utility>

#include "hook_frontend.h"

namespace torchlms {

namespace {

// PyTorch's own stack of default hooks, which its Python engine asks.
class PythonHooks final : public HookFrontend {
 public:
  PythonHooks(PyObject* pack, PyObject* unpack)
      : pack_(pack, getPyInterpreter()), unpack_(unpack, getPyInterpreter()) {}

  void check() const override {}

  bool may_push() const override {
    return at::SavedTensorDefaultHooks::is_enabled();
  }

  size_t depth() const override {
    return at::SavedTensorDefaultHooks::get_tls_state().stack.size();
  }

  void push() override {
    at::SavedTensorDefaultHooks::push_hooks(pack_, unpack_);
  }

  void remove() override {
    auto state = at::SavedTensorDefaultHooks::get_tls_state();
    std::stack<std::pair<c10::SafePyObject, c10::SafePyObject>> above;
    while (!state.stack.empty()) {
      auto layer = state.stack.top();
      state.stack.pop();
      if (layer.first.ptr(getPyInterpreter()) == pack_.ptr(getPyInterpreter())) {
        break;
      }
      above.push(std::move(layer));
    }
    for (; !above.empty(); above.pop()) {
      state.stack.push(above.top());
    }
    at::SavedTensorDefaultHooks::set_tls_state(state);
  }

 private:
  const c10::SafePyObject pack_;
  const c10::SafePyObject unpack_;
};

} // namespace

void register_default_hooks(PyObject* pack, PyObject* unpack) {
  at::SavedTensorDefaultHooks::lazy_initialize();
  set_hook_frontend(new PythonHooks(pack, unpack)); // leaked: interpreters end in any order
}

} // namespace torchlms
