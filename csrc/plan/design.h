// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <vector>

#include "plan/plan.h"
#include "plan/start.h"
#include "plan/swap_schedule.h"

namespace torchlms {

// How good a plan is: the first that differs decides.
struct Score {
  double step_us = 0;
  Bytes link_bytes = 0;
  size_t num_actions = 0;

  auto operator<=>(const Score&) const = default;
};

// What a search changes, before it becomes a plan.
struct Design {
  std::vector<ActionKind> kinds; // by StorageId
  PrefetchRule rule;
  Score score; // at the level it was made for
  StartKind start = StartKind::kNone;
};

// Prefetch distances that are tried.
inline constexpr std::array kNumUnpacksAhead = {1, 2, 4, 8, 16, 32, 64, PrefetchRule::kNoLimit};

} // namespace torchlms
