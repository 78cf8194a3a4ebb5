// SPDX-License-Identifier: BSD-3-Clause
#include "recompute/purity.h"

#include <ATen/core/enum_tag.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <c10/util/Synchronized.h>
#include <cctype>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>

namespace torchlms {

namespace {

constexpr std::array<std::string_view, 5> kBatchNorms = {
    "aten::native_batch_norm",
    "aten::_native_batch_norm_legit",
    "aten::_batch_norm_with_update",
    "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm",
};

// Their kernels add in whatever order threads come, or write what the schema does not say.
constexpr std::array<std::string_view, 18> kNeverReplayed = {
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_unsafe_index_put",
    "aten::put",
    "aten::put_",
    "aten::scatter_add",
    "aten::scatter_add_",
    "aten::scatter_reduce",
    "aten::scatter_reduce_",
    "aten::index_add",
    "aten::index_add_",
    "aten::index_reduce",
    "aten::index_reduce_",
    "aten::bincount",
    "aten::histc",
    "aten::set_",
    "aten::resize_as_",
};

// The same of kernels of a GPU: sums, and choices among equals, in whatever order threads come.
constexpr std::array<std::string_view, 16> kUnorderedOnGpu = {
    "aten::cumsum",
    "aten::cumsum_",
    "aten::cumprod",
    "aten::cumprod_",
    "aten::logcumsumexp",
    "aten::nll_loss2d_forward",
    "aten::median",
    "aten::nanmedian",
    "aten::kthvalue",
    "aten::max_unpool2d",
    "aten::max_unpool3d",
    "aten::scatter",
    "aten::scatter_",
    "aten::index_copy",
    "aten::index_copy_",
    "aten::cudnn_convolution_transpose",
};

// Filled by somebody whom nobody sees.
constexpr std::array<std::string_view, 9> kFactories = {
    "aten::empty",
    "aten::new_",
    "aten::zeros",
    "aten::ones",
    "aten::full",
    "aten::rand",
    "aten::_empty",
    "aten::resize",
    "aten::_efficientzerotensor",
};

template <size_t N>
bool is_listed(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_factory(const c10::FunctionSchema& schema) {
  const std::string_view name = schema.name();
  const auto& args = schema.arguments();
  const bool has_tensors = std::any_of(args.begin(), args.end(), [](const c10::Argument& arg) {
    return arg.type()->isSubtypeOf(*c10::OptionalType::ofTensor()) ||
        arg.type()->isSubtypeOf(*c10::ListType::ofTensors()) ||
        arg.type()->isSubtypeOf(*c10::ListType::create(c10::OptionalType::ofTensor()));
  });
  return !has_tensors || name.ends_with("_like") ||
      std::any_of(kFactories.begin(), kFactories.end(), [name](std::string_view prefix) {
        return name.starts_with(prefix);
      });
}

// Writes nothing, or its first argument and returns it.
bool is_pure_or_in_place(const c10::FunctionSchema& schema, uint64_t written_args) {
  if (written_args == 0) {
    return true;
  }
  const auto& returns = schema.returns();
  return written_args == 1 && returns.size() == 1 && returns[0].alias_info() != nullptr &&
      returns[0].alias_info()->isWrite();
}

// A transposed convolution is what cuDNN does backward, with sums in any order.
bool is_unordered_on_gpu(const OperatorTraits& traits, c10::ArrayRef<const c10::IValue> args) {
  const auto transposed = static_cast<size_t>(traits.transposed_arg);
  return traits.is_unordered_on_gpu ||
      (traits.transposed_arg >= 0 && transposed < args.size() && args[transposed].isBool() &&
       args[transposed].toBool());
}

bool is_on_gpu(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().is_cuda();
}

c10::Synchronized<std::set<std::string>>& allowed() {
  static auto* names =
      new c10::Synchronized<std::set<std::string>>; // leaked: ops run in static destructors too
  return *names;
}

// A value that a record may keep: nothing that refers to the outside.
bool is_storable(const c10::IValue& value) {
  return value.isNone() || value.isTensor() || value.isInt() || value.isDouble() || value.isBool() ||
      value.isString() || value.isDevice() || value.isComplexDouble() || value.isTensorList() ||
      value.isOptionalTensorList() || value.isIntList() || value.isDoubleList() || value.isBoolList() ||
      (value.isList() && std::all_of(value.toListRef().begin(), value.toListRef().end(), is_storable));
}

// "ns::op" or "ns::op.overload".
bool is_operator_name(const std::string& text) {
  const auto is_word = [](const std::string& part) {
    return !part.empty() &&
        std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
  };
  const auto colons = text.find("::");
  const std::string name = colons == std::string::npos ? "" : text.substr(colons + 2);
  const auto dot = name.find('.');
  return is_word(text.substr(0, colons)) && is_word(name.substr(0, dot)) &&
      (dot == std::string::npos || is_word(name.substr(dot + 1)));
}

} // namespace

OperatorTraits::OperatorTraits(const c10::OperatorHandle& handle) : handle(handle) {
  const c10::FunctionSchema& schema = handle.schema();
  const std::string& name = schema.name();
  const bool is_batch_norm = is_listed(kBatchNorms, name);
  for (size_t i = 0; i < schema.arguments().size() && i < 64; ++i) {
    const c10::Argument& arg = schema.arguments()[i];
    const bool is_statistic = is_batch_norm && arg.name().starts_with("running_");
    if (is_statistic || (arg.alias_info() && arg.alias_info()->isWrite())) {
      written_args |= uint64_t{1} << i;
      scratch_args |= is_statistic ? uint64_t{1} << i : 0;
    }
    training_arg = is_batch_norm && arg.name() == "training" ? static_cast<int>(i) : training_arg;
    dropout_arg = arg.name() == "dropout_p" ? static_cast<int>(i) : dropout_arg;
    transposed_arg = arg.name() == "transposed" ? static_cast<int>(i) : transposed_arg;
  }
  workspace_output = name == "aten::mkldnn_rnn_layer" ? 3 : -1;
  is_unordered_on_gpu = is_listed(kUnorderedOnGpu, name);
  if (is_factory(schema) || is_listed(kNeverReplayed, name) || handle.hasTag(at::Tag::inplace_view) ||
      handle.hasTag(at::Tag::nondeterministic_bitwise) ||
      !is_pure_or_in_place(schema, written_args & ~scratch_args)) {
    replay = Replay::kNever;
  } else if (!name.starts_with("aten::")) {
    replay = Replay::kIfAllowed;
  } else if (handle.hasTag(at::Tag::nondeterministic_seeded)) {
    const bool is_attention = name.starts_with("aten::_scaled_dot_product") && dropout_arg >= 0;
    replay = is_attention ? Replay::kWithoutDropout : Replay::kNever;
  } else {
    replay = Replay::kAlways;
  }
}

uint64_t written_args(const OperatorTraits& traits, c10::ArrayRef<const c10::IValue> args) {
  const auto training = static_cast<size_t>(traits.training_arg);
  const bool keeps_statistics = traits.training_arg >= 0 && training < args.size() &&
      args[training].isBool() && !args[training].toBool();
  return keeps_statistics ? traits.written_args & ~traits.scratch_args : traits.written_args;
}

bool is_replayable(const OperatorTraits& traits, c10::ArrayRef<const c10::IValue> args) {
  using Replay = OperatorTraits::Replay;
  if (traits.replay == Replay::kNever || !std::all_of(args.begin(), args.end(), is_storable)) {
    return false;
  }
  if (is_unordered_on_gpu(traits, args) && std::any_of(args.begin(), args.end(), is_on_gpu)) {
    return false;
  }
  if (traits.replay == Replay::kWithoutDropout) {
    const auto index = static_cast<size_t>(traits.dropout_arg);
    return index < args.size() && args[index].isDouble() && args[index].toDouble() == 0;
  }
  if (traits.replay == Replay::kIfAllowed) {
    const c10::OperatorName& name = traits.handle.operator_name();
    return allowed().withLock([&](const std::set<std::string>& names) {
      return names.count(name.name) > 0 || names.count(name.name + "." + name.overload_name) > 0;
    });
  }
  return true;
}

void allow_replay(const std::string& name) {
  if (!is_operator_name(name)) {
    throw std::invalid_argument(
        "torchlms: recomputable(\"" + name +
        "\") is not the name of an operator; expected \"ns::op\" or \"ns::op.overload\"");
  }
  allowed().withLock([&](std::set<std::string>& names) { names.insert(name); });
}

} // namespace torchlms
