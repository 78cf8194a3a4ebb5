// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <pybind11/pybind11.h>

namespace torchlms {

// Readies the Python type that autograd stores and installs the pack and unpack hooks, which are plain
// C functions (a pybind11 call costs more than the hook). Called once, with the GIL.
void register_packed_type();

// Marks the tensor's storage as not to be moved in the scope that is open on this thread.
void keep_tensor(const pybind11::object& tensor);

} // namespace torchlms
