// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "plan/design.h"
#include "plan/workbench.h"

namespace torchlms {

// A start that recomputes what light ops have expanded: storages at least four times as large as what running
// their ops again must hold for them. A leaf that stays anyway holds nothing, and one that several such
// storages read is shared by them.
Design recompute_expansions(Workbench& bench);

} // namespace torchlms
