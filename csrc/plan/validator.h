// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>

#include "export.h"
#include "plan/plan.h"
#include "trace/trace.h"

namespace torchlms {

// The first invariant that `plan` breaks on `trace`, in words, or nothing. The slow obvious oracle:
// shares no code with planner or simulator.
TORCHLMS_EXPORT std::optional<std::string> validate(const Trace& trace, const Plan& plan);

} // namespace torchlms
