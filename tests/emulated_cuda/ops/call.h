// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <vector>

#include "cpu_twin.h"
#include "queue.h"

namespace emulated_cuda {

// One call of an operator on the device, on its way to the CPU's kernel.
class Call {
 public:
  // Takes the arguments off the stack.
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack);

  // Shapes from the Meta kernel, the work queued; false, with nothing done, if that kernel cannot say.
  bool run_queued(torch::jit::Stack& stack);
  // Waits for the CPU's kernel first: shapes that depend on data, results that are no tensors.
  void run_waiting(torch::jit::Stack& stack);

  bool has_plain_returns() const;

 private:
  bool writes(size_t argument) const;
  bool reads(size_t argument) const;
  // The argument that a return of an in-place or out= operator is.
  std::optional<size_t> argument_of_return(size_t result) const;

  bool only_in_place() const;
  bool like_first_list(torch::jit::Stack& results) const;

  bool run_meta(torch::jit::Stack& results);
  void resize_outputs(const torch::jit::Stack& metas);
  torch::jit::Stack cpu_arguments();
  Footprint footprint() const;

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  const std::string name_;
  torch::jit::Stack arguments_;
  torch::jit::Stack meta_arguments_;
  c10::DeviceIndex device_ = -1;
};

// The kernel registered for the CUDA key of almost every operator.
void emulate(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

} // namespace emulated_cuda
