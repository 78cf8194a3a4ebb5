// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "export.h"
#include "swap/disk_store.h"
#include "swap/link.h"

namespace torchlms {

struct DiskSpeed {
  double out_bytes_per_s = 0;
  double in_bytes_per_s = 0;
};

// Writes `size` bytes through the link to the store and reads them back, nothing else running. Blocks.
// Throws DiskError.
TORCHLMS_EXPORT DiskSpeed measure_disk(DiskStore& store, Link& link, Bytes size);

} // namespace torchlms
