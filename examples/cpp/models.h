// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/torch.h>

// Two convolutions, and their input added to what they make of it.
struct ResidualBlockImpl : torch::nn::Module {
  ResidualBlockImpl(int64_t in, int64_t out, int64_t stride)
      : conv1(torch::nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false)),
        conv2(torch::nn::Conv2dOptions(out, out, 3).padding(1).bias(false)),
        norm1(out),
        norm2(out) {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    if (in != out) {
      shortcut = register_module(
          "shortcut", torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 1).stride(stride).bias(false)));
    }
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = norm2(conv2(torch::relu(norm1(conv1(x)))));
    return torch::relu(y + (shortcut ? shortcut(x) : x));
  }

  torch::nn::Conv2d conv1, conv2, shortcut{nullptr};
  torch::nn::BatchNorm2d norm1, norm2;
};
TORCH_MODULE(ResidualBlock);

// ResNet-20 for small images: He et al., "Deep Residual Learning for Image Recognition" (2015), section 4.2.
struct ResNet20Impl : torch::nn::Module {
  ResNet20Impl() : conv(torch::nn::Conv2dOptions(1, 16, 3).padding(1).bias(false)), norm(16), head(64, 10) {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("blocks", blocks);
    register_module("head", head);
    int64_t channels = 16;
    for (const int64_t width : {16, 32, 64}) {
      for (int block = 0; block < 3; ++block) {
        blocks->push_back(ResidualBlock(channels, width, width == channels ? 1 : 2));
        channels = width;
      }
    }
  }

  torch::Tensor forward(const torch::Tensor& images) {
    const torch::Tensor features = blocks->forward(torch::relu(norm(conv(images))));
    return head(features.mean({2, 3}));
  }

  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
  torch::nn::Sequential blocks;
  torch::nn::Linear head;
};
TORCH_MODULE(ResNet20);

// A small vision transformer: 64 patches of 4x4 pixels, six encoder layers with dropout.
struct VisionTransformerImpl : torch::nn::Module {
  VisionTransformerImpl()
      : patches(torch::nn::Conv2dOptions(1, kWidth, 4).stride(4)),
        encoder(
            torch::nn::TransformerEncoderOptions(
                torch::nn::TransformerEncoderLayerOptions(kWidth, 4).dim_feedforward(4 * kWidth).dropout(0.1),
                6)),
        head(kWidth, 10) {
    register_module("patches", patches);
    register_module("encoder", encoder);
    register_module("head", head);
    positions = register_parameter("positions", 0.02 * torch::randn({64, 1, kWidth}));
  }

  torch::Tensor forward(const torch::Tensor& images) {
    const torch::Tensor tokens = patches(images).flatten(2).permute({2, 0, 1}); // (64, N, width)
    return head(encoder(tokens + positions).mean(0));
  }

  static constexpr int64_t kWidth = 128;
  torch::nn::Conv2d patches;
  torch::nn::TransformerEncoder encoder;
  torch::nn::Linear head;
  torch::Tensor positions;
};
TORCH_MODULE(VisionTransformer);
