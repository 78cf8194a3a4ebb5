// SPDX-License-Identifier: BSD-3-Clause
#include "recompute/view.h"

#include <c10/core/DispatchKeySet.h>
#include <cstring>

namespace torchlms {

View::View(const at::Tensor& tensor)
    : sizes(tensor.sizes().begin(), tensor.sizes().end()),
      strides(tensor.strides().begin(), tensor.strides().end()),
      storage_offset(tensor.storage_offset()),
      dtype(tensor.dtype()),
      device(tensor.device()),
      is_conj(tensor.is_conj()),
      is_neg(tensor.is_neg()) {}

at::Tensor View::over(c10::Storage storage) const {
  c10::DispatchKeySet keys(c10::computeDispatchKey(c10::typeMetaToScalarType(dtype), c10::kStrided, device));
  if (is_conj) {
    keys = keys.add(c10::DispatchKey::Conjugate);
  }
  if (is_neg) {
    keys = keys.add(c10::DispatchKey::Negative);
  }
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, storage_offset);
  return tensor;
}

at::Tensor View::copy_of(const c10::Storage& storage) const {
  at::Tensor copy = scratch();
  const Bytes span = span_bytes();
  if (span > 0) {
    const Bytes offset = storage_offset * static_cast<Bytes>(dtype.itemsize());
    std::memcpy(
        copy.storage().mutable_data(),
        static_cast<const char*>(storage.data()) + offset,
        static_cast<size_t>(span));
  }
  return copy;
}

at::Tensor View::scratch() const {
  View own = *this;
  own.storage_offset = 0;
  return own.over(
      c10::Storage(
          c10::Storage::use_byte_size_t(),
          static_cast<size_t>(span_bytes()),
          c10::GetAllocator(device.type()),
          /*resizable=*/true));
}

Bytes View::span_bytes() const {
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) {
      return 0;
    }
    last += (sizes[i] - 1) * strides[i];
  }
  return (last + 1) * static_cast<Bytes>(dtype.itemsize());
}

} // namespace torchlms
