// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <pybind11/pybind11.h>

namespace torchlms {

class Session;

// Python's progress line of each session: fn(phase, done, total), total 0 when unknown. All of it is
// guarded by the GIL.

// None clears.
void set_progress(const Session& session, pybind11::object fn);
// No effect without a function. Throws what it raises.
void show_progress(const Session& session, const char* phase, int64_t done, int64_t total);
// One more saved tensor of a step that is being recorded; shown now and then.
void count_recorded(const Session& session);

} // namespace torchlms
