// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_twin.h"

#include <c10/core/Allocator.h>

namespace emulated_cuda {

c10::Storage Twins::storage_of(const c10::Storage& storage) {
  auto& twin = storages_[storage.unsafeGetStorageImpl()];
  if (!twin) {
    const bool meta = type_ == c10::DeviceType::Meta;
    void* bytes = meta ? nullptr : storage.mutable_data();
    twin = c10::Storage(
        c10::Storage::use_byte_size_t(),
        storage.nbytes(),
        c10::DataPtr(bytes, c10::Device(type_)),
        meta ? c10::GetAllocator(c10::DeviceType::Meta) : nullptr,
        /*resizable=*/meta);
  }
  return twin;
}

at::Tensor Twins::of(const at::Tensor& tensor) {
  auto& twin = tensors_[tensor.unsafeGetTensorImpl()];
  if (twin.defined())
    return twin;
  const auto key = type_ == c10::DeviceType::Meta ? c10::DispatchKey::Meta : c10::DispatchKey::CPU;
  twin = at::detail::make_tensor<c10::TensorImpl>(
      storage_of(tensor.storage()), c10::DispatchKeySet(key), tensor.dtype());
  auto* impl = twin.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  impl->_set_conj(tensor.is_conj());
  impl->_set_neg(tensor.is_neg());
  if (tensor.dim() == 0)
    impl->set_wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
  return twin;
}

} // namespace emulated_cuda
