// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <pybind11/pybind11.h>

namespace torchlms {

// _C.Trace: a recorded step, to be planned without running it.
void bind_planning(pybind11::module_& m);

} // namespace torchlms
