// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace torchlms {

// Calls visit(element, tensor) for every defined tensor in a boxed argument or output; `element` is its
// place in a list, or -1.
template <class F>
void for_each_tensor(const c10::IValue& value, const F& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      visit(-1, value.toTensor());
    }
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    int element = 0;
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor() && item.toTensor().defined()) {
        visit(element, item.toTensor());
      }
      ++element;
    }
  }
}

} // namespace torchlms
