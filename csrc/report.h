// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "export.h"
#include "trace/types.h"

namespace torchlms {

// What users see of the step that ran last. Optional fields are not known yet.
struct TORCHLMS_EXPORT Report {
  struct LinkUse {
    Bytes bytes = 0;
    double busy_us = 0;
    double bandwidth_bytes_per_s = 0;
    int64_t late = 0;
    double wait_us_p50 = 0;
    double wait_us_p99 = 0;
  };

  int64_t step = 0;
  std::string state = "recording"; // "recording" | "executing" | "off"
  std::string policy;
  Bytes budget_bytes = 0;
  Bytes peak_bytes = 0;
  std::optional<Bytes> unlimited_peak_bytes;
  std::optional<Bytes> predicted_peak_bytes;
  std::optional<double> predicted_step_us;
  std::optional<double> measured_step_us;
  std::optional<double> lower_bound_us;
  std::optional<Bytes> floor_bytes;
  std::optional<std::string> floor_op;
  Bytes saved_bytes = 0; // kept + swapped + recomputed
  Bytes kept_bytes = 0;
  Bytes swapped_bytes = 0;
  Bytes recomputed_bytes = 0;
  Bytes deduplicated_bytes = 0;
  double stall_us = 0;
  double recompute_us = 0;
  double plan_us = 0;
  LinkUse out;
  LinkUse in;
  Bytes disk_bytes = 0; // highest in use at once
  Bytes disk_written_total_bytes = 0;
  Bytes host_bytes = 0;
  Bytes uncounted_bytes = 0; // older storages that ops read and the allocator did not make
  int64_t num_evictions = 0; // swap-outs that no plan foresaw
  std::map<std::string, int64_t> not_planned;

  std::string to_json() const;
};

} // namespace torchlms
