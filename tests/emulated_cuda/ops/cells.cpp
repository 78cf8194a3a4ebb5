// SPDX-License-Identifier: BSD-3-Clause
// The fused cells of LSTM and GRU, which the CPU has none of.
#include <ATen/ATen.h>

#include <functional>

#include "by_hand.h"
#include "cpu_twin.h"
#include "queue.h"

namespace emulated_cuda {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using MaybeTensor = std::optional<Tensor>;

Tensor or_undefined(const MaybeTensor& tensor) {
  return tensor ? *tensor : Tensor();
}

// Queues the computation of `sizes.size()` outputs from the inputs, all like the first input but in size.
Tensors run(
    const std::string& name,
    const Tensors& inputs,
    const std::vector<std::vector<int64_t>>& sizes,
    const std::function<Tensors(const Tensors&)>& compute) {
  const auto device = inputs.front().get_device();
  Twins twins(c10::DeviceType::CPU);
  Footprint footprint;
  Tensors from;
  for (const auto& input : inputs) {
    from.push_back(input.defined() ? twins.of(input) : input);
    if (input.defined())
      footprint.reads.push_back(input);
  }
  Tensors outputs;
  Tensors to;
  for (const auto& size : sizes) {
    outputs.push_back(empty_on(device, at::empty(size, inputs.front().options().device(c10::kMeta))));
    to.push_back(twins.of(outputs.back()));
  }
  footprint.writes = outputs;
  enqueue(device, name, footprint, [from, to, compute] {
    const Tensors results = compute(from);
    for (size_t i = 0; i < to.size(); i++)
      to[i].copy_(results[i]);
  });
  return outputs;
}

Tensor with_bias(const Tensor& gates, const Tensor& bias) {
  return bias.defined() ? gates + bias : gates;
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(
    const Tensor& input_gates,
    const Tensor& hidden_gates,
    const Tensor& cx,
    const MaybeTensor& input_bias,
    const MaybeTensor& hidden_bias) {
  const auto outputs =
      run("aten::_thnn_fused_lstm_cell",
          {input_gates, hidden_gates, cx, or_undefined(input_bias), or_undefined(hidden_bias)},
          {cx.sizes().vec(), cx.sizes().vec(), input_gates.sizes().vec()},
          [](const Tensors& in) -> Tensors {
            const auto gates = (with_bias(in[0], in[3]) + with_bias(in[1], in[4])).chunk(4, 1);
            const auto i = gates[0].sigmoid();
            const auto f = gates[1].sigmoid();
            const auto g = gates[2].tanh();
            const auto o = gates[3].sigmoid();
            const auto cy = f * in[2] + i * g;
            return {o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
          });
  return {outputs[0], outputs[1], outputs[2]};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(
    const MaybeTensor& grad_hy,
    const MaybeTensor& grad_cy,
    const Tensor& cx,
    const Tensor& cy,
    const Tensor& workspace,
    bool has_bias) {
  if (!or_undefined(grad_hy).defined() && !or_undefined(grad_cy).defined())
    return {};
  std::vector<std::vector<int64_t>> sizes{workspace.sizes().vec(), cx.sizes().vec()};
  if (has_bias)
    sizes.push_back({workspace.size(1)});
  auto outputs =
      run("aten::_thnn_fused_lstm_cell_backward_impl",
          {cx, cy, workspace, or_undefined(grad_hy), or_undefined(grad_cy)},
          sizes,
          [](const Tensors& in) -> Tensors {
            const auto gates = in[2].chunk(4, 1);
            const auto &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3];
            const auto tanh_cy = in[1].tanh();
            const auto grad_h = in[3].defined() ? in[3] : at::zeros_like(in[0]);
            auto grad_c = grad_h * o * (1 - tanh_cy * tanh_cy);
            if (in[4].defined())
              grad_c = grad_c + in[4];
            const auto grad_gates = at::cat(
                {grad_c * g * i * (1 - i),
                 grad_c * in[0] * f * (1 - f),
                 grad_c * i * (1 - g * g),
                 grad_h * tanh_cy * o * (1 - o)},
                1);
            return {grad_gates, grad_c * f, grad_gates.sum(0)};
          });
  outputs.resize(3);
  return {outputs[0], outputs[1], outputs[2]};
}

std::tuple<Tensor, Tensor> gru_cell(
    const Tensor& input_gates,
    const Tensor& hidden_gates,
    const Tensor& hx,
    const MaybeTensor& input_bias,
    const MaybeTensor& hidden_bias) {
  const auto outputs =
      run("aten::_thnn_fused_gru_cell",
          {input_gates, hidden_gates, hx, or_undefined(input_bias), or_undefined(hidden_bias)},
          {hx.sizes().vec(), {hx.size(0), hx.size(1) * 5}},
          [](const Tensors& in) -> Tensors {
            const auto from_input = with_bias(in[0], in[3]).chunk(3, 1);
            const auto from_hidden = with_bias(in[1], in[4]).chunk(3, 1);
            const auto r = (from_input[0] + from_hidden[0]).sigmoid();
            const auto z = (from_input[1] + from_hidden[1]).sigmoid();
            const auto n = (from_input[2] + r * from_hidden[2]).tanh();
            return {n + z * (in[2] - n), at::cat({r, z, n, in[2], from_hidden[2]}, 1)};
          });
  return {outputs[0], outputs[1]};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(
    const Tensor& grad_hy, const Tensor& workspace, bool has_bias) {
  const auto rows = grad_hy.size(0);
  const auto gates = grad_hy.size(1) * 3;
  std::vector<std::vector<int64_t>> sizes{{rows, gates}, {rows, gates}, grad_hy.sizes().vec()};
  if (has_bias)
    sizes.insert(sizes.end(), {{gates}, {gates}});
  auto outputs = run(
      "aten::_thnn_fused_gru_cell_backward", {grad_hy, workspace}, sizes, [](const Tensors& in) -> Tensors {
        const auto saved = in[1].chunk(5, 1);
        const auto &r = saved[0], &z = saved[1], &n = saved[2], &hx = saved[3], &hidden = saved[4];
        const auto grad_z = in[0] * (hx - n) * (1 - z) * z;
        const auto grad_n = in[0] * (1 - z) * (1 - n * n);
        const auto grad_r = grad_n * hidden * (1 - r) * r;
        const auto grad_input = at::cat({grad_r, grad_z, grad_n}, 1);
        const auto grad_hidden = at::cat({grad_r, grad_z, grad_n * r}, 1);
        return {grad_input, grad_hidden, in[0] * z, grad_input.sum(0), grad_hidden.sum(0)};
      });
  outputs.resize(5);
  return {outputs[0], outputs[1], outputs[2], outputs[3], outputs[4]};
}

} // namespace

void install_cells(torch::Library& library) {
  library.impl("_thnn_fused_lstm_cell", &lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  library.impl("_thnn_fused_gru_cell", &gru_cell);
  library.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

} // namespace emulated_cuda
