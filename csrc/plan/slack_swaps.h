// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "plan/design.h"
#include "plan/workbench.h"

namespace torchlms {

// Swaps what the link can move unseen: out before the forward pass ends and in before its use, those with the
// most time to spare first, as long as all of them meet their deadlines in both directions.
Design slack_swaps(Workbench& bench);

} // namespace torchlms
