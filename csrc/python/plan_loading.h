// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <pybind11/pybind11.h>
#include <string>

#include "program.h"
#include "session.h"

namespace torchlms {

// The session's latest plan with the trace that it was made for, or "" when there is none yet.
std::string plan_file_json(Session& session);

// A trace from what json.loads made of it. Throws c10::ValueError that quotes what is missing, of the wrong
// type, or inconsistent.
Trace load_trace(const pybind11::dict& trace);

// The inverse of plan_file_json, from what json.loads made of the two. Throws as load_trace does.
ProgramPtr load_program(const pybind11::dict& trace, const pybind11::dict& plan);

} // namespace torchlms
