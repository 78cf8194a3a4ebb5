// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <pybind11/pybind11.h>

#include "session.h"

namespace torchlms {

// Asks a Python function (name, overload, args, kwargs, output) -> "none", "save", "recompute" or "swap".
// Takes the GIL when called and when destroyed.
DemandFn demand_fn(pybind11::object ask);

} // namespace torchlms
