// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include "export.h"
#include "swap/disk_store.h"
#include "swap/link.h"
#include "swap/swap_engine.h"

namespace torchlms {

struct LinkSpeed {
  double out_bytes_per_s = 0;
  double in_bytes_per_s = 0;
};

// Writes `size` bytes through the link to the store and reads them back, nothing else running. Blocks.
// Throws DiskError.
TORCHLMS_EXPORT LinkSpeed measure_disk(DiskStore& store, Link& link, Bytes size);

// The same between the engine's device and its host tier, with at most `size` bytes. Null where there is no
// host tier, or no room for a probe on either side.
std::optional<LinkSpeed> measure_host(SwapEngine& engine, Bytes size);

} // namespace torchlms
