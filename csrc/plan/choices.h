// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "export.h"
#include "trace/trace.h"

namespace torchlms {

// What a planner that is not here needs to know of a trace, as JSON: what is held when everything is kept, what
// may be swapped and when, what may be rebuilt and from what.
TORCHLMS_EXPORT std::string choices_json(const Trace& trace);

} // namespace torchlms
