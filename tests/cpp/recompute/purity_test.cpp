// SPDX-License-Identifier: BSD-3-Clause
#include "recompute/purity.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace torchlms {
namespace {

OperatorTraits traits_of(const std::string& name, const std::string& overload = "") {
  return OperatorTraits(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str()));
}

bool replays(const OperatorTraits& traits, const std::vector<c10::IValue>& args) {
  return is_replayable(traits, c10::ArrayRef<const c10::IValue>(args.data(), args.size()));
}

uint64_t writes(const OperatorTraits& traits, const std::vector<c10::IValue>& args) {
  return written_args(traits, c10::ArrayRef<const c10::IValue>(args.data(), args.size()));
}

std::vector<c10::IValue> nones(size_t count) {
  return std::vector<c10::IValue>(count);
}

TEST(Purity, OpsThatAreFunctionsOfTheirInputsMayRunAgain) {
  for (const char* name :
       {"aten::convolution",
        "aten::relu",
        "aten::gelu",
        "aten::native_layer_norm",
        "aten::addmm",
        "aten::embedding",
        "aten::max_pool2d_with_indices",
        "aten::tanh",
        "aten::silu"}) {
    EXPECT_TRUE(replays(traits_of(name), nones(9))) << name;
  }
}

TEST(Purity, InPlaceOpsWriteTheirFirstArgumentAndMayRunAgain) {
  for (const char* name : {"aten::relu_", "aten::tanh_", "aten::sigmoid_"}) {
    const OperatorTraits traits = traits_of(name);
    EXPECT_TRUE(replays(traits, nones(1))) << name;
    EXPECT_EQ(writes(traits, nones(1)), 1u) << name;
  }
  EXPECT_EQ(writes(traits_of("aten::add_", "Tensor"), nones(3)), 1u);
}

TEST(Purity, RandomOpsNeverRunAgain) {
  for (const char* name :
       {"aten::native_dropout", "aten::bernoulli", "aten::rrelu_with_noise", "aten::multinomial"}) {
    EXPECT_FALSE(replays(traits_of(name), nones(2))) << name;
  }
  EXPECT_FALSE(replays(traits_of("aten::bernoulli_", "float"), nones(3)));
}

TEST(Purity, WhatOthersMayFillNeverRunsAgain) {
  for (const char* name : {"aten::empty_like", "aten::zeros_like", "aten::new_zeros", "aten::new_empty"}) {
    EXPECT_FALSE(replays(traits_of(name), nones(6))) << name;
  }
  EXPECT_FALSE(replays(traits_of("aten::empty", "memory_format"), nones(6)));
  EXPECT_FALSE(replays(traits_of("aten::zeros"), nones(5)));
  EXPECT_FALSE(replays(traits_of("aten::arange"), nones(5)));
}

TEST(Purity, OpsThatWriteElsewhereOrChangeGeometryNeverRunAgain) {
  EXPECT_FALSE(replays(traits_of("aten::add", "out"), nones(4)));
  EXPECT_FALSE(replays(traits_of("aten::_foreach_add_", "Scalar"), nones(2)));
  EXPECT_FALSE(replays(traits_of("aten::resize_"), nones(3)));
  EXPECT_FALSE(replays(traits_of("aten::transpose_"), nones(3)));
}

TEST(Purity, OpsThatAddInAnyOrderNeverRunAgain) {
  EXPECT_FALSE(replays(traits_of("aten::index_put"), nones(4)));
  EXPECT_FALSE(replays(traits_of("aten::scatter_add"), nones(4)));
}

// Has no bytes, and needs no device.
at::Tensor tensor_on(c10::DeviceType device) {
  return at::detail::make_tensor<c10::TensorImpl>(
      c10::DispatchKeySet(c10::computeDispatchKey(c10::kFloat, c10::kStrided, device)),
      caffe2::TypeMeta::Make<float>(),
      c10::Device(device, 0));
}

TEST(Purity, OpsThatAGpuDoesInAnyOrderRunAgainOnACpuOnly) {
  const OperatorTraits scan = traits_of("aten::cumsum");
  EXPECT_TRUE(replays(scan, {tensor_on(c10::kCPU), int64_t{0}, c10::IValue()}));
  EXPECT_FALSE(replays(scan, {tensor_on(c10::kCUDA), int64_t{0}, c10::IValue()}));
  EXPECT_TRUE(replays(traits_of("aten::tanh"), {tensor_on(c10::kCUDA)}));
}

TEST(Purity, TransposedConvolutionsRunAgainOnACpuOnly) {
  const OperatorTraits convolution = traits_of("aten::convolution");
  ASSERT_EQ(convolution.transposed_arg, 6);
  for (const bool is_transposed : {false, true}) {
    std::vector<c10::IValue> args = nones(9);
    args[6] = is_transposed;
    args[0] = tensor_on(c10::kCPU);
    EXPECT_TRUE(replays(convolution, args));
    args[0] = tensor_on(c10::kCUDA);
    EXPECT_EQ(replays(convolution, args), !is_transposed);
  }
}

TEST(Purity, AttentionMayRunAgainWithoutDropoutOnly) {
  const OperatorTraits traits = traits_of("aten::_scaled_dot_product_flash_attention_for_cpu");
  ASSERT_GE(traits.dropout_arg, 0);
  std::vector<c10::IValue> args = nones(7);
  args[traits.dropout_arg] = 0.0;
  EXPECT_TRUE(replays(traits, args));
  args[traits.dropout_arg] = 0.1;
  EXPECT_FALSE(replays(traits, args));
}

TEST(Purity, BatchNormWritesItsRunningStatisticsAsideWhileTraining) {
  const OperatorTraits traits = traits_of("aten::native_batch_norm");
  ASSERT_EQ(traits.training_arg, 5);
  std::vector<c10::IValue> args = nones(8);
  args[5] = true;
  EXPECT_TRUE(replays(traits, args));
  EXPECT_EQ(writes(traits, args), uint64_t{0b11000});
  EXPECT_EQ(traits.scratch_args, uint64_t{0b11000});
  args[5] = false;
  EXPECT_EQ(writes(traits, args), 0u);
}

TEST(Purity, AForeignOpRunsAgainOnlyWhenAllowed) {
  const auto registered = c10::Dispatcher::singleton().registerDef(
      c10::FunctionSchema(
          "purity_test::twice",
          "",
          {c10::Argument("self", c10::TensorType::get())},
          {c10::Argument("", c10::TensorType::get())}),
      "purity_test");
  const OperatorTraits traits = traits_of("purity_test::twice");
  EXPECT_FALSE(replays(traits, nones(1)));
  allow_replay("purity_test::twice");
  EXPECT_TRUE(replays(traits, nones(1)));
}

} // namespace
} // namespace torchlms
