// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "export.h"
#include "plan/cost_model.h"
#include "trace/trace.h"

namespace torchlms {

// Costs that are given instead of measured, so that a plan can be made again elsewhere: one JSON object
// of numbers, {"out_bytes_per_s": 1e9, "in_bytes_per_s": 1e9, "latency_us": 100, "event_us": 50}, each
// optional. A plain value.
struct TORCHLMS_EXPORT CostFile {
  CostModel costs;
  std::optional<double> event_us; // what each event of a trace takes; none: what was recorded

  // The file that TORCHLMS_COSTS names; none when the variable is not set. Both of these throw
  // std::invalid_argument that quotes what is wrong, and in which file.
  static std::optional<CostFile> from_environment();
  static CostFile parse(std::string_view text, const std::string& path);

  void retime(Trace& trace) const;
};

} // namespace torchlms
