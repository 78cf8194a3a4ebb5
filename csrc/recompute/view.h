// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "trace/types.h"

namespace torchlms {

// A tensor's geometry over its storage, strides exact.
struct View {
  explicit View(const at::Tensor& tensor);
  // A fresh tensor over `storage` with this geometry, no autograd state.
  at::Tensor over(c10::Storage storage) const;
  // The same over bytes of its own, strides exact. On a device with a queue: in the order of this thread's.
  at::Tensor copy_of(const c10::Storage& storage) const;
  // A fresh tensor of this geometry over bytes of its own that nobody has set.
  at::Tensor scratch() const;
  View bytes(Bytes offset) const;
  Bytes span_bytes() const; // from the first to the last element

  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;
  int64_t storage_offset;
  caffe2::TypeMeta dtype;
  c10::Device device;
  bool is_conj;
  bool is_neg;
};

} // namespace torchlms
