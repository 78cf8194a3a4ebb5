// SPDX-License-Identifier: BSD-3-Clause
// Runs when the library is loaded: puts the emulation over PyTorch's own CUDA kernels.
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <unordered_set>

#include "by_hand.h"
#include "call.h"

namespace emulated_cuda {
namespace {

// They allocate, make views, or go through the runtime alone: PyTorch's own kernels work.
const std::unordered_set<std::string> kOwnKernels{
    "aten::empty",
    "aten::empty_strided",
    "aten::set_",
    "aten::resize_",
    "aten::resize_as_",
    "aten::record_stream",
    "aten::_local_scalar_dense",
    "aten::is_pinned",
    "aten::_pin_memory",
    "aten::_cudnn_init_dropout_state",
    "aten::_nested_tensor_from_mask",
    "aten::is_set_to",
};

// Over several kernels in PyTorch, with other bits than the CPU's one.
const std::unordered_set<std::string> kWhole{
    "aten::convolution",
    "aten::convolution_backward",
};

bool makes_views(const c10::FunctionSchema& schema) {
  for (const auto& declared : schema.returns())
    if (declared.alias_info() != nullptr && !declared.alias_info()->isWrite())
      return true;
  return false;
}

bool emulated(const c10::OperatorHandle& op) {
  const auto& name = op.schema().name();
  if (kOwnKernels.count(name) > 0 || is_by_hand(name) || makes_views(op.schema()))
    return false;
  if (kWhole.count(name) > 0)
    return op.schema().overload_name().empty();
  return op.hasKernelForDispatchKey(c10::DispatchKey::CUDA) &&
      op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
}

struct Silent : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

void use_plain_kernels() {
  auto& context = at::globalContext();
  context.setUserEnabledCuDNN(false);
  context.setSDPUseFlash(false);
  context.setSDPUseMemEfficient(false);
  context.setSDPUseCuDNN(false);
}

bool install() {
  Silent silent; // each replaced kernel is a warning
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto& library =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || name.getNamespace() != std::optional<std::string_view>("aten") || !emulated(*op))
      continue;
    library.impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&emulate>());
  }
  install_by_hand(library);
  use_plain_kernels();
  return true;
}

const bool installed = install();

} // namespace
} // namespace emulated_cuda
