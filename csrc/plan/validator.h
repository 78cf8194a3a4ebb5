// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>

#include "plan/plan.h"
#include "trace/trace.h"

namespace torchlms {

// The first invariant that `plan` breaks on `trace`, in words, or nothing. The
// slow obvious oracle: shares no code with planner or simulator.
std::optional<std::string> validate(const Trace& trace, const Plan& plan);

} // namespace torchlms
