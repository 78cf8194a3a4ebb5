// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <torchlms/torchlms.h>
#include <vector>

namespace torchlms {

// A chain of layers, always with the same weights, for tests of what happens around it.
struct Chain {
  static constexpr int64_t kRows = 1024;
  static constexpr int64_t kWidth = 128;

  explicit Chain(int depth = 6) : input(numbers({kRows, kWidth})) {
    for (int layer = 0; layer < depth; ++layer) {
      weights.push_back(numbers({kWidth, kWidth}).mul(0.1).requires_grad_());
    }
  }

  static at::Tensor numbers(at::IntArrayRef sizes) {
    return at::arange(c10::multiply_integers(sizes), at::kFloat).sin().view(sizes);
  }

  at::Tensor forward() const {
    at::Tensor x = input;
    for (const at::Tensor& weight : weights) {
      x = x.mm(weight).tanh();
    }
    return x.mul(x).sum();
  }

  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& weight : weights) {
      all.push_back(weight.grad().clone());
    }
    return all;
  }

  void zero_grad() const {
    for (const at::Tensor& weight : weights) {
      weight.mutable_grad().reset();
    }
  }

  // Of one plain step.
  std::vector<at::Tensor> plain_gradients() const {
    forward().backward();
    auto all = gradients();
    zero_grad();
    return all;
  }

  at::Tensor input;
  std::vector<at::Tensor> weights;
};

inline bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) {
    return false;
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].equal(b[i])) {
      return false;
    }
  }
  return true;
}

// Everything that may be moved is.
inline Options smallest() {
  return {.budget_bytes = Budget::minimum(), .policy = Policy::kSwap, .min_offload_bytes = 0};
}

// Bytes that tensors hold now.
inline int64_t held_bytes() {
  Session counting({.policy = Policy::kOff});
  const Scope scope(counting); // from here on the peak is counted
  return counting.report().peak_bytes;
}

} // namespace torchlms
