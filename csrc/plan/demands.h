// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "export.h"
#include "plan/regions.h"
#include "trace/trace.h"

namespace torchlms {

// Per storage, what the last op that wrote it demands of its plan. kSave is not among it: such a storage
// has no region, and may be kept or swapped. What cannot be done is no demand either. Empty: none at all.
using Demands = std::vector<Demand>;
TORCHLMS_EXPORT Demands demands_of(const Trace& trace, const Regions& regions);

TORCHLMS_EXPORT bool makes_demands(const Trace& trace);

// Storages that autograd saved for which a demand cannot be met.
TORCHLMS_EXPORT int32_t num_unmet_demands(const Trace& trace, const Regions& regions);

} // namespace torchlms
