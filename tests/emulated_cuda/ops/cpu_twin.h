// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <unordered_map>

namespace emulated_cuda {

// Stand-ins on another device for the tensors of one call: tensors that share a storage have stand-ins
// that share one, and one tensor given twice has one stand-in, since kernels ask about both.
class Twins {
 public:
  // kCPU: over the very bytes. kMeta: over none.
  explicit Twins(c10::DeviceType type) : type_(type) {}

  at::Tensor of(const at::Tensor& tensor);

 private:
  c10::Storage storage_of(const c10::Storage& storage);

  const c10::DeviceType type_;
  std::unordered_map<c10::StorageImpl*, c10::Storage> storages_;
  std::unordered_map<c10::TensorImpl*, at::Tensor> tensors_;
};

// The value with every tensor in it replaced, in lists too.
template <class F>
c10::IValue map_tensors(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    return tensor.defined() ? c10::IValue(f(tensor)) : value;
  }
  if (value.isTensorList()) {
    auto tensors = value.toTensorVector();
    for (auto& tensor : tensors)
      if (tensor.defined())
        tensor = f(tensor);
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> mapped;
    for (std::optional<at::Tensor> tensor : value.toOptionalTensorVector())
      mapped.push_back(tensor && tensor->defined() ? f(*tensor) : tensor);
    return mapped;
  }
  return value;
}

template <class F>
void each_tensor(const c10::IValue& value, F&& f) {
  map_tensors(value, [&](const at::Tensor& tensor) {
    f(tensor);
    return tensor;
  });
}

} // namespace emulated_cuda
