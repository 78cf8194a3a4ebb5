// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <pybind11/pybind11.h>

namespace torchlms {

// _C.Recorder and _C.purity_of: what writes a trace of a step that Python observes.
void bind_recording(pybind11::module_& m);

} // namespace torchlms
