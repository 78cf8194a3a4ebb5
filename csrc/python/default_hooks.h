// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <pybind11/pybind11.h>

namespace torchlms {

// Makes Python the face of this process: inside scopes, the two callables are PyTorch's default hooks
// for saved tensors. Takes over the references. Called once, with the GIL.
void register_default_hooks(PyObject* pack, PyObject* unpack);

} // namespace torchlms
