// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <pybind11/pybind11.h>

#include "program.h"

namespace torchlms {

// A program from what json.loads made of the two halves of a plan file. Throws c10::ValueError that quotes what is missing,
// of the wrong type, or inconsistent.
ProgramPtr load_program(const pybind11::dict& trace, const pybind11::dict& plan);

} // namespace torchlms
