// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "trace/types.h"

namespace torchlms {

// What a transfer costs, from measured samples. A plain value.
struct CostModel {
  double out_bytes_per_s = 1e9;
  double in_bytes_per_s = 1e9;
  double latency_us = 100;

  double out_us(Bytes size) const {
    return latency_us + static_cast<double>(size) * 1e6 / out_bytes_per_s;
  }
  double in_us(Bytes size) const {
    return latency_us + static_cast<double>(size) * 1e6 / in_bytes_per_s;
  }
};

} // namespace torchlms
