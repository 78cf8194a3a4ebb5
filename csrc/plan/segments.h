// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "plan/design.h"
#include "plan/workbench.h"

namespace torchlms {

// Designs that keep the boundaries of segments of the forward pass and recompute what lies between them, with
// segments of several sizes, smallest first.
std::vector<Design> cut_into_segments(Workbench& bench);

} // namespace torchlms
