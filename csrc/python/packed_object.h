// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <pybind11/pybind11.h>

namespace torchlms {

class Session;

// Readies the Python type that autograd stores and installs the pack and unpack hooks, which are plain
// C functions (a pybind11 call costs more than the hook). Called once, with the GIL.
void register_packed_type();

// Marks the tensor's storage as not to be moved in the scope that is open on this thread.
void keep_tensor(const pybind11::object& tensor);

// Called about every 64 packs of a step that is being recorded by that session: its packs so far. None
// clears.
void set_recording_progress(Session* session, pybind11::object fn);

} // namespace torchlms
