// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <pybind11/pybind11.h>

#include "program.h"

namespace torchlms {

// A trace from what json.loads made of it. Throws c10::ValueError that quotes what is missing, of the wrong
// type, or inconsistent.
Trace load_trace(const pybind11::dict& trace);

// A program from what json.loads made of the two halves of a plan file. Throws as load_trace does.
ProgramPtr load_program(const pybind11::dict& trace, const pybind11::dict& plan);

} // namespace torchlms
