// SPDX-License-Identifier: BSD-3-Clause
#include "call.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <unordered_set>

#include "flops.h"
#include "random.h"
#include "runtime/counters.h"

namespace emulated_cuda {
namespace {

// In-place operators that never read what they write, or not with a beta of 0.
bool may_only_write(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string> names{
      "aten::copy_",
      "aten::zero_",
      "aten::fill_",
      "aten::addmm_",
      "aten::addmv_",
      "aten::addbmm_",
      "aten::baddbmm_",
      "aten::addr_",
  };
  return names.count(op.schema().name()) > 0 || op.hasTag(at::Tag::nondeterministic_seeded);
}

// Written though the schema does not say so.
bool hidden_write(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  return schema.name() == "aten::native_batch_norm" && argument.name().starts_with("running_");
}

bool is_generator(const c10::Argument& argument) {
  const auto* type = argument.type().get();
  if (const auto* optional = type->castRaw<c10::OptionalType>())
    type = optional->getElementType().get();
  return type->kind() == c10::TypeKind::GeneratorType;
}

bool same_geometry(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides();
}

void copy_results(const torch::jit::Stack& results, const torch::jit::Stack& outputs) {
  for (size_t i = 0; i < outputs.size(); i++) {
    if (outputs[i].isNone())
      continue;
    if (outputs[i].isTensor()) {
      const auto& output = outputs[i].toTensor();
      const auto& result = results[i].toTensor();
      // Where the Meta kernel has a shape the CPU may have nothing: the statistics saved by a norm in evaluation.
      if (output.defined() && result.defined() && (result.numel() > 0 || output.numel() == 0))
        output.copy_(result);
      continue;
    }
    const auto from = results[i].toTensorVector();
    const auto to = outputs[i].toTensorVector();
    for (size_t j = 0; j < to.size(); j++)
      to[j].copy_(from[j]);
  }
}

} // namespace

Call::Call(const c10::OperatorHandle& op, torch::jit::Stack& stack)
    : op_(op), schema_(op.schema()), name_(toString(op.operator_name())) {
  arguments_ = torch::jit::pop(stack, schema_.arguments().size());
  for (const auto& argument : arguments_) {
    each_tensor(argument, [&](const at::Tensor& tensor) {
      if (device_ < 0 && tensor.is_cuda())
        device_ = tensor.get_device();
    });
    if (device_ < 0 && argument.isDevice() && argument.toDevice().is_cuda())
      device_ = argument.toDevice().index();
  }
  if (device_ < 0)
    device_ = c10::cuda::current_device();
}

bool Call::writes(size_t argument) const {
  const auto& declared = schema_.arguments()[argument];
  const auto* alias = declared.alias_info();
  return (alias != nullptr && alias->isWrite()) || hidden_write(schema_, declared);
}

// An argument that is written counts as read only where it must be: a write conflicts with all that a read
// does, and reading asks for bytes that were written before.
bool Call::reads(size_t argument) const {
  return !writes(argument) || (argument == 0 && schema_.name().back() == '_' && !may_only_write(op_));
}

bool Call::has_plain_returns() const {
  for (const auto& declared : schema_.returns()) {
    const auto kind = declared.type()->kind();
    if (kind == c10::TypeKind::TensorType)
      continue;
    const auto* list = declared.type()->castRaw<c10::ListType>();
    if (list == nullptr || list->getElementType()->kind() != c10::TypeKind::TensorType)
      return true;
  }
  return false;
}

std::optional<size_t> Call::argument_of_return(size_t result) const {
  const auto* alias = schema_.returns()[result].alias_info();
  if (alias == nullptr)
    return std::nullopt;
  for (size_t i = 0; i < arguments_.size(); i++) {
    const auto* other = schema_.arguments()[i].alias_info();
    if (other != nullptr && other->beforeSets() == alias->beforeSets())
      return i;
  }
  return std::nullopt;
}

bool Call::run_meta(torch::jit::Stack& results) {
  at::DisableRecordFunctionGuard unobserved;
  at::AutoDispatchBelowADInplaceOrView below;
  Twins twins(c10::DeviceType::Meta);
  results.clear();
  for (const auto& argument : arguments_) {
    if (argument.isDevice())
      results.emplace_back(c10::Device(c10::DeviceType::Meta));
    else if (argument.isGenerator())
      results.emplace_back();
    else
      results.push_back(map_tensors(argument, [&](const at::Tensor& tensor) {
        return tensor.is_cuda() || tensor.dim() > 0 ? twins.of(tensor) : tensor;
      }));
  }
  meta_arguments_ = results;
  try {
    op_.callBoxedForDispatchKey(c10::DispatchKey::Meta, results);
  } catch (const c10::NotImplementedError&) {
    results.clear();
    return only_in_place() || like_first_list(results);
  } catch (const std::exception&) {
    return false; // the CPU's kernel knows, or has the better message
  }
  return true;
}

bool Call::only_in_place() const {
  for (size_t i = 0; i < schema_.returns().size(); i++)
    if (!argument_of_return(i))
      return false;
  return std::none_of(schema_.arguments().begin(), schema_.arguments().end(), [](const auto& argument) {
    return argument.is_out();
  });
}

// The foreach operators have no Meta kernels; on floating tensors their results are like their first list.
bool Call::like_first_list(torch::jit::Stack& results) const {
  if (!schema_.name().starts_with("aten::_foreach_") || !arguments_[0].isTensorList())
    return false;
  const bool reduces = schema_.name() == "aten::_foreach_norm" || schema_.name() == "aten::_foreach_max";
  std::vector<at::Tensor> metas;
  for (const at::Tensor& tensor : arguments_[0].toTensorVector()) {
    if (!tensor.is_floating_point())
      return false;
    auto meta = Twins(c10::DeviceType::Meta).of(tensor);
    metas.push_back(reduces ? at::empty_like(meta.sum()) : meta);
  }
  results.emplace_back(metas);
  return true;
}

void Call::resize_outputs(const torch::jit::Stack& metas) {
  for (size_t i = 0; i < arguments_.size(); i++) {
    if (!schema_.arguments()[i].is_out() || !arguments_[i].isTensor())
      continue;
    const auto& meta = metas[i].toTensor();
    const auto& output = arguments_[i].toTensor();
    if (same_geometry(meta, output))
      continue;
    output.resize_(meta.sizes());
    if (!same_geometry(meta, output))
      output.as_strided_(meta.sizes(), meta.strides());
  }
}

torch::jit::Stack Call::cpu_arguments() {
  Twins twins(c10::DeviceType::CPU);
  torch::jit::Stack mapped;
  for (size_t i = 0; i < arguments_.size(); i++) {
    const auto& argument = arguments_[i];
    if (is_generator(schema_.arguments()[i])) {
      const auto given = argument.isNone() ? std::nullopt : std::make_optional(argument.toGenerator());
      mapped.emplace_back(draw(given, device_));
    } else if (argument.isDevice()) {
      mapped.emplace_back(c10::Device(c10::DeviceType::CPU));
    } else {
      mapped.push_back(map_tensors(argument, [&](const at::Tensor& tensor) {
        // A CPU tensor is taken by value, as a kernel's argument is.
        if (tensor.is_cuda())
          return twins.of(tensor);
        auto copy = tensor.clone();
        copy.unsafeGetTensorImpl()->set_wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
        return copy;
      }));
    }
  }
  return mapped;
}

Footprint Call::footprint() const {
  Footprint footprint;
  for (size_t i = 0; i < arguments_.size(); i++)
    each_tensor(arguments_[i], [&](const at::Tensor& tensor) {
      if (reads(i))
        footprint.reads.push_back(tensor);
      if (writes(i))
        footprint.writes.push_back(tensor);
    });
  return footprint;
}

bool Call::run_queued(torch::jit::Stack& stack) {
  torch::jit::Stack metas;
  if (!run_meta(metas))
    return false;
  resize_outputs(meta_arguments_);
  Footprint footprint = this->footprint();
  Twins twins(c10::DeviceType::CPU);
  torch::jit::Stack outputs;
  torch::jit::Stack returned;
  for (size_t i = 0; i < schema_.returns().size(); i++) {
    if (const auto argument = argument_of_return(i)) {
      returned.push_back(arguments_[*argument]);
      outputs.emplace_back();
      continue;
    }
    returned.push_back(map_tensors(metas[i], [&](const at::Tensor& meta) {
      TORCH_CHECK(meta.layout() == c10::kStrided, name_, ": only strided tensors are emulated");
      auto output = empty_on(device_, meta);
      footprint.writes.push_back(output);
      return output;
    }));
    outputs.push_back(
        map_tensors(returned.back(), [&](const at::Tensor& output) { return twins.of(output); }));
  }
  footprint.flops = flops_of(name_, arguments_, footprint);
  enqueue(device_, name_, footprint, [op = op_, outputs, arguments = cpu_arguments()] {
    auto results = arguments; // a captured graph runs it again
    op.callBoxed(results);
    copy_results(results, outputs);
  });
  for (auto& value : returned)
    stack.push_back(std::move(value));
  return true;
}

void Call::run_waiting(torch::jit::Stack& stack) {
  auto results = cpu_arguments();
  enqueue_and_wait(device_, name_, footprint(), [&] { op_.callBoxed(results); });
  for (size_t i = 0; i < results.size(); i++) {
    if (const auto argument = argument_of_return(i)) {
      stack.push_back(arguments_[*argument]);
      continue;
    }
    stack.push_back(map_tensors(results[i], [&](const at::Tensor& result) {
      auto output = empty_on(device_, result);
      Twins twins(c10::DeviceType::CPU);
      enqueue(device_, name_, {{}, {output}}, [to = twins.of(output), result] { to.copy_(result); });
      return output;
    }));
  }
}

void emulate(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  Call call(op, *stack);
  static const std::unordered_set<std::string> wrong_meta{
      "aten::_embedding_bag", "aten::_embedding_bag_forward_only"};
  // The tag is on indexing too, where only a mask's shape depends on data, and the Meta kernel knows.
  const bool dynamic = op.hasTag(at::Tag::dynamic_output_shape) && op.schema().name() != "aten::index";
  const bool waits = dynamic || call.has_plain_returns() || wrong_meta.count(op.schema().name()) > 0;
  if (!waits && call.run_queued(*stack))
    return;
  counters().waiting_ops++;
  call.run_waiting(*stack);
}

} // namespace emulated_cuda
