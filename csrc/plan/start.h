// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "trace/types.h"

namespace torchlms {

// Where a search begins.
enum class StartKind : uint8_t {
  kNone,
  kDistance, // swaps by distance
  kRate, // recomputes by bytes per second of replay
  kSlack, // swaps that the link can hide
  kExpansions, // recomputes of what light ops have expanded
  kSegments, // recomputes between boundaries that are kept
  kGiven, // by the caller
};

constexpr const char* to_string(StartKind kind) {
  switch (kind) {
    case StartKind::kNone:
      return "";
    case StartKind::kDistance:
      return "distance";
    case StartKind::kRate:
      return "rate";
    case StartKind::kSlack:
      return "slack";
    case StartKind::kExpansions:
      return "expansions";
    case StartKind::kSegments:
      return "segments";
    case StartKind::kGiven:
      return "given";
  }
  return "";
}

// One that a caller gives, as storages of the trace; what may not be so is kept.
struct Start {
  std::vector<StorageId> swapped;
  std::vector<StorageId> recomputed;
};

} // namespace torchlms
