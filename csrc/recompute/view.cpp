// SPDX-License-Identifier: BSD-3-Clause
#include "recompute/view.h"

#include <ATen/ops/copy_ops.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
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
  const Bytes offset = storage_offset * static_cast<Bytes>(dtype.itemsize());
  if (span > 0 && !device.is_cpu()) {
    const c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    at::Tensor to = bytes(0).over(copy.storage());
    at::_ops::copy_::call(to, bytes(offset).over(storage), /*non_blocking=*/true);
  } else if (span > 0) {
    std::memcpy(
        copy.storage().mutable_data(),
        static_cast<const char*>(storage.data()) + offset,
        static_cast<size_t>(span));
  }
  return copy;
}

// Its span as plain bytes from there on.
View View::bytes(Bytes offset) const {
  View plain = *this;
  plain.sizes = {span_bytes()};
  plain.strides = {1};
  plain.storage_offset = offset;
  plain.dtype = caffe2::TypeMeta::Make<uint8_t>();
  plain.is_conj = false;
  plain.is_neg = false;
  return plain;
}

at::Tensor View::scratch() const {
  const c10::DeviceGuard guard(device); // the allocator serves the current one
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
