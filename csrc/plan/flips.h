// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "plan/design.h"
#include "plan/workbench.h"

namespace torchlms {

// Searches that change the actions of storages one by one, or many at once, and take over what the simulator
// finds faster. Each does at most num_trials simulations, and says whether it improved. `first` says with
// which of the largest to begin: the search at the next level can go on there.

// Turns swaps into recomputes in the order of their bytes on the link, most first: all of a run of them at
// once, and where that does not pay, each half of it.
bool turn_swaps(Workbench& bench, Design& design, Bytes level, int num_trials);

// Gives each storage the other actions that it may have, largest first.
bool flip_each(Workbench& bench, Design& design, Bytes level, size_t first, int num_trials);

// Gives all storages of one kind (as large, and made by the same operator: the same layer of repeated blocks)
// the other actions that they may have, most bytes first.
bool flip_alike(Workbench& bench, Design& design, Bytes level, int num_trials);

// Swaps the actions of two storages among the largest.
bool exchange_pairs(Workbench& bench, Design& design, Bytes level, int num_trials);

} // namespace torchlms
