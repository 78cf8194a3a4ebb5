// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <pybind11/pybind11.h>
#include <string>

#include "program.h"
#include "session.h"

namespace torchlms {

// The session's latest plan with the trace that it was made for, or "" when there is none yet.
std::string plan_file_json(Session& session);

// The inverse, from what json.loads made of the two. Throws c10::ValueError that quotes what is missing,
// of the wrong type, or inconsistent.
ProgramPtr load_program(const pybind11::dict& trace, const pybind11::dict& plan);

} // namespace torchlms
