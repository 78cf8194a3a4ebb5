// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <span>
#include <vector>

#include "plan/design.h"
#include "plan/workbench.h"

namespace torchlms {

// Designs that recompute by saved bytes per second of replay. Refers to the workbench. Thread-safety: none.
class RecomputeSearch {
 public:
  explicit RecomputeSearch(Workbench& bench);

  // Recomputes storages, most bytes per second of replay first, until the design fits; swaps only where no
  // recompute would help, and gives recomputes up where those of others hold too much. Requires: level is no
  // less than the floor.
  void extend(Design& design, Bytes level);
  // Keeps what there is room for, longest replay first, except one storage. The design fits before and after.
  void drop_redundant(Design& design, Bytes level, StorageId except = kNone);
  // Exchanges one recompute for others, largest storages first, beginning with one of them.
  bool exchange(Design& design, Bytes level, size_t first, int num_trials);

 private:
  bool add_recompute(Design& design, Bytes level, const std::vector<Bytes>& held, int num_trials);
  void drop(Design& design, Bytes level, std::span<const StorageId> run);
  bool add_swap(Design& design, Bytes level, const std::vector<Bytes>& held);
  bool swap_a_recompute(Design& design, Bytes level, const std::vector<Bytes>& held);

  Workbench& bench_;
  std::vector<const Region*> by_ratio_; // most bytes per second first
  std::vector<const Region*> by_size_; // largest first
  std::vector<uint8_t> is_rejected_; // by StorageId, in one extend()
};

} // namespace torchlms
