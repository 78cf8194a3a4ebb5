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

  void push(size_t depth) override {
    std::stack<Layer> above = take_off([&](const auto& stack) { return stack.size() <= depth; });
    at::SavedTensorDefaultHooks::push_hooks(pack_, unpack_);
    put_back(above);
  }

  void remove() override {
    std::stack<Layer> above = take_off([this](const auto& stack) {
      return stack.top().first.ptr(getPyInterpreter()) == pack_.ptr(getPyInterpreter());
    });
    auto state = at::SavedTensorDefaultHooks::get_tls_state();
    if (!state.stack.empty()) {
      state.stack.pop();
      at::SavedTensorDefaultHooks::set_tls_state(state);
    }
    put_back(above);
  }

 private:
  using Layer = std::pair<c10::SafePyObject, c10::SafePyObject>;

  // The layers above the one where `is_reached` holds, or all.
  template <class Fn>
  static std::stack<Layer> take_off(const Fn& is_reached) {
    auto state = at::SavedTensorDefaultHooks::get_tls_state();
    std::stack<Layer> above;
    while (!state.stack.empty() && !is_reached(state.stack)) {
      above.push(std::move(state.stack.top()));
      state.stack.pop();
    }
    at::SavedTensorDefaultHooks::set_tls_state(state);
    return above;
  }

  static void put_back(std::stack<Layer>& above) {
    auto state = at::SavedTensorDefaultHooks::get_tls_state();
    for (; !above.empty(); above.pop()) {
      state.stack.push(std::move(above.top()));
    }
    at::SavedTensorDefaultHooks::set_tls_state(state);
  }

  const c10::SafePyObject pack_;
  const c10::SafePyObject unpack_;
};

} // namespace

void register_default_hooks(PyObject* pack, PyObject* unpack) {
  at::SavedTensorDefaultHooks::lazy_initialize();
  set_hook_frontend(new PythonHooks(pack, unpack)); // leaked: interpreters end in any order
}

} // namespace torchlms
