// SPDX-License-Identifier: BSD-3-Clause
#include "cpp_api/engine.h"

#include <ATen/SequenceNumber.h>
#include <memory>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <typeinfo>

#include "cpp_api/errors.h"
#include "cpu/budget_allocator.h"
#include "cpu/cpu_device.h"
#include "hook_frontend.h"
#include "hooks.h"
#include "packed.h"

namespace torchlms {

// Note [Hooks without Python]
//
// PyTorch's stack of default hooks takes Python callables only, but autograd asks its engine for the
// hooks of each tensor that it saves, and the engine may be a subclass. There is one engine in a process.
// Ours is put in place while the library is loaded, before main() and hence before autograd's first use,
// unless another engine is there already: Python's, when `import torch` came first. In a Python process
// the hooks are those that `import torchlms` registers; this file then only tells what is missing.

namespace {

using torch::autograd::Engine;
using torch::autograd::SavedVariableHooks;

thread_local bool has_hooks = false;

class SavedTensor final : public SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) override {
    packed_ = translated([&] { return pack_for_current_scope(tensor, /*is_plain=*/true, /*keep=*/false); });
    if (!packed_) {
      pin_ = VersionPin(tensor);
      alias_ = tensor.detach();
    }
  }

  at::Tensor call_unpack_hook() override {
    if (!packed_) {
      pin_.check(alias_);
      return alias_.detach();
    }
    return translated([&] { return packed_->unpack(copy_out_for_current_node(), nullptr); });
  }

 private:
  std::unique_ptr<Packed> packed_;
  // Without one: a kind of tensor that is passed through.
  at::Tensor alias_;
  VersionPin pin_;
};

class HookingEngine final : public Engine {
 public:
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    return has_hooks ? std::make_unique<SavedTensor>() : nullptr;
  }
};

Engine& hooking_engine() {
  static auto* engine = new HookingEngine; // leaked: its threads may outlive static destructors
  return *engine;
}

class CppHooks final : public HookFrontend {
 public:
  void check() const override {
    check_setup();
  }
  bool may_push() const override {
    return true;
  }
  size_t depth() const override {
    return has_hooks ? 1 : 0;
  }
  void push(size_t /*depth*/) override {
    has_hooks = true;
  }
  void remove() override {
    has_hooks = false;
  }
};

void throw_disk_error(const DiskError& error) {
  throw v1::DiskError(error.code(), error.what());
}

bool was_too_late = false; // autograd had been used before this library was loaded

// Set up by the loader; see Note [Hooks without Python].
[[maybe_unused]] const bool set_up = [] {
  register_cpu_device();
  const Engine& present = Engine::get_default_engine();
  if (typeid(present) != typeid(Engine)) {
    return false;
  }
  was_too_late = at::sequence_number::peek() > 0; // counts the nodes that this thread has made
  if (was_too_late) {
    return false;
  }
  BudgetAllocator::get().install();
  torch::autograd::set_default_engine_stub(hooking_engine);
  set_hook_frontend(new CppHooks); // leaked, as the engine
  Session::set_disk_error_thrower(throw_disk_error);
  return true;
}();

} // namespace

void check_setup() {
  const Engine& engine = Engine::get_default_engine();
  if (&engine == &hooking_engine()) {
    return;
  }
  if (std::string(typeid(engine).name()).find("PythonEngine") != std::string::npos) {
    const HookFrontend* frontend = hook_frontend();
    if (frontend && !dynamic_cast<const CppHooks*>(frontend)) {
      return;
    }
    throw v1::SetupError(
        "torchlms: autograd belongs to Python in this process, and the torchlms Python package is not loaded: run "
        "`import torchlms` in Python before the first torchlms::Session");
  }
  if (was_too_late) {
    throw v1::SetupError(
        "torchlms: libtorchlms was loaded after autograd had been used, which is too late for its hooks: link it to "
        "the program, or load it before the first tensor that requires gradients is used");
  }
  throw v1::SetupError(
      "torchlms: another library has replaced PyTorch's autograd engine in this process, so that torchlms sees "
      "nothing of what autograd saves");
}

} // namespace torchlms
