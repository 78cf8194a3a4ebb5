// SPDX-License-Identifier: BSD-3-Clause
#include "flops.h"

#include <algorithm>
#include <string_view>

namespace emulated_cuda {
namespace {

double size_of(const at::Tensor& tensor) {
  return static_cast<double>(tensor.numel());
}

// Of left @ right, whatever the number of batches is.
double product(const c10::IValue& left, const c10::IValue& right) {
  return 2 * size_of(left.toTensor()) * static_cast<double>(right.toTensor().size(-1));
}

// Each element of the larger side of a convolution meets one filter.
double convolution(const at::Tensor& side, const at::Tensor& weight) {
  return weight.numel() == 0 ? 0 : 2 * size_of(side) * size_of(weight) / static_cast<double>(weight.size(0));
}

} // namespace

double flops_of(const std::string& name, const torch::jit::Stack& arguments, const Footprint& footprint) {
  const std::string_view op(name.data(), std::min(name.find('.'), name.size()));
  if (op == "aten::mm" || op == "aten::bmm" || op == "aten::mv")
    return op == "aten::mv" ? 2 * size_of(arguments[0].toTensor()) : product(arguments[0], arguments[1]);
  if (op == "aten::addmm" || op == "aten::baddbmm" || op == "aten::addmm_" || op == "aten::baddbmm_")
    return product(arguments[1], arguments[2]);
  if (op == "aten::convolution") {
    const bool transposed = arguments[6].toBool();
    return convolution(
        transposed ? arguments[0].toTensor() : footprint.writes.front(), arguments[1].toTensor());
  }
  if (op == "aten::convolution_backward") {
    const bool transposed = arguments[7].toBool();
    const auto mask = arguments[10].toBoolList();
    const double one = convolution(arguments[transposed ? 1 : 0].toTensor(), arguments[2].toTensor());
    return (mask[0] ? one : 0) + (mask[1] ? one : 0);
  }
  return 0;
}

} // namespace emulated_cuda
