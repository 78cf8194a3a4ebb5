// SPDX-License-Identifier: BSD-3-Clause
#include "plan/recompute_search.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace torchlms {

namespace {

// What lies above the level, over all events: less of it is nearer to fitting.
Bytes excess(const std::vector<Bytes>& held, Bytes level) {
  Bytes sum = 0;
  for (const Bytes bytes : held) {
    sum += std::max<Bytes>(bytes - level, 0);
  }
  return sum;
}

EventId worst_event(const std::vector<Bytes>& held) {
  return static_cast<EventId>(std::max_element(held.begin(), held.end()) - held.begin());
}

bool fits(const std::vector<Bytes>& held, Bytes level) {
  return std::none_of(held.begin(), held.end(), [level](Bytes bytes) { return bytes > level; });
}

// Replacements for one recompute that are looked at.
constexpr int kMaxReplacements = 6;

constexpr int kMaxSwapped = 48; // recomputes that are looked at to give one up
constexpr size_t kRun = 32; // recomputes dropped at once

} // namespace

RecomputeSearch::RecomputeSearch(Workbench& bench)
    : bench_(bench), is_rejected_(bench.trace().storages.size(), 0) {
  const std::vector<StorageRecord>& storages = bench.trace().storages;
  for (const Region& region : bench.regions().all()) {
    by_ratio_.push_back(&region);
  }
  by_size_ = by_ratio_;
  const auto size = [&storages](const Region* region) {
    return static_cast<double>(storages[region->storage].size_bytes);
  };
  std::stable_sort(by_ratio_.begin(), by_ratio_.end(), [&size](const Region* a, const Region* b) {
    return size(a) * b->replay_us > size(b) * a->replay_us;
  });
  std::stable_sort(by_size_.begin(), by_size_.end(), [&size](const Region* a, const Region* b) {
    return size(a) > size(b);
  });
}

void RecomputeSearch::extend(Design& design, Bytes level) {
  std::fill(is_rejected_.begin(), is_rejected_.end(), 0);
  while (true) {
    const std::vector<Bytes> held = bench_.held_on_demand(design);
    if (fits(held, level)) {
      return;
    }
    if (add_recompute(design, level, held, std::numeric_limits<int>::max()) ||
        add_swap(design, level, held) || swap_a_recompute(design, level, held)) {
      continue;
    }
    // The floor is what swapping everything holds.
    for (size_t i = 0; i < design.kinds.size(); ++i) {
      const auto id = static_cast<StorageId>(i);
      const bool may_swap = bench_.regions().of(id) != nullptr && bench_.may_be(id, ActionKind::kSwap);
      design.kinds[i] = may_swap ? ActionKind::kSwap : design.kinds[i];
      is_rejected_[i] = 1;
    }
    bench_.fit(design, level);
    return;
  }
}

bool RecomputeSearch::add_recompute(
    Design& design, Bytes level, const std::vector<Bytes>& held, int num_trials) {
  const EventId worst = worst_event(held);
  const Bytes before = excess(held, level);
  for (const Region* const region : by_ratio_) {
    const StorageId id = region->storage;
    const StorageRecord& storage = bench_.trace().storages[id];
    if (design.kinds[id] != ActionKind::kKeep || is_rejected_[id] || worst <= storage.dead ||
        worst > bench_.storages(design)[id].first_unpack) {
      continue;
    }
    if (num_trials-- <= 0) {
      return false;
    }
    Design trial = design;
    trial.kinds[id] = ActionKind::kRecompute;
    if (excess(bench_.held_on_demand(trial), level) < before) {
      design = std::move(trial);
      return true;
    }
    is_rejected_[id] = 1;
  }
  return false;
}

// What cannot be rebuilt goes first, then what suffices.
bool RecomputeSearch::add_swap(Design& design, Bytes level, const std::vector<Bytes>& held) {
  const EventId worst = worst_event(held);
  const Bytes missing = held[worst] - level;
  const auto rank = [&](const Candidate& candidate) {
    const bool is_rebuilt = bench_.regions().of(candidate.storage) != nullptr;
    const bool suffices = candidate.size_bytes >= missing;
    const Bytes size = suffices ? candidate.size_bytes : -candidate.size_bytes;
    return std::tuple<bool, bool, Bytes>(is_rebuilt, !suffices, size);
  };
  const Candidate* best = nullptr;
  for (const Candidate& candidate : bench_.candidates(design)) {
    if (design.kinds[candidate.storage] == ActionKind::kKeep && worst > candidate.dead &&
        worst <= candidate.gap_last && (best == nullptr || rank(candidate) < rank(*best))) {
      best = &candidate;
    }
  }
  if (best != nullptr) {
    design.kinds[best->storage] = ActionKind::kSwap;
  }
  return best != nullptr;
}

bool RecomputeSearch::swap_a_recompute(Design& design, Bytes level, const std::vector<Bytes>& held) {
  Bytes least = excess(held, level);
  StorageId best = kNone;
  const EventId worst = worst_event(held);
  int num_trials = kMaxSwapped;
  for (const Region* const region : by_size_) {
    // Only what is back by then, or just being rebuilt, holds anything there.
    const bool may_help = design.kinds[region->storage] == ActionKind::kRecompute &&
        bench_.may_be(region->storage, ActionKind::kSwap) &&
        bench_.storages(design)[region->storage].first_unpack < worst;
    if (may_help && num_trials-- > 0) {
      Design trial = design;
      trial.kinds[region->storage] = ActionKind::kSwap;
      const Bytes left = excess(bench_.held_on_demand(trial), level);
      if (left < least) {
        least = left;
        best = region->storage;
      }
    }
  }
  if (best != kNone) {
    design.kinds[best] = ActionKind::kSwap;
    is_rejected_[best] = 1;
  }
  return best != kNone;
}

void RecomputeSearch::drop_redundant(Design& design, Bytes level, StorageId except) {
  const std::vector<Bytes> held = bench_.held_on_demand(design);
  const std::vector<StorageRecord>& storages = bench_.storages(design);
  std::vector<StorageId>
      droppable; // each by itself, but for the leaves it holds: longest replay per byte first
  for (auto i = by_ratio_.rbegin(); i != by_ratio_.rend(); ++i) {
    const StorageRecord& storage = storages[(*i)->storage];
    if (design.kinds[(*i)->storage] != ActionKind::kRecompute || (*i)->storage == except ||
        !bench_.may_be((*i)->storage, ActionKind::kKeep)) {
      continue;
    }
    const auto first = held.begin() + storage.dead + 1;
    const auto end = held.begin() + storage.first_unpack + 1;
    if (std::all_of(first, end, [&](Bytes bytes) { return bytes <= level - storage.size_bytes; })) {
      droppable.push_back((*i)->storage);
    }
  }
  for (size_t i = 0; i < droppable.size(); i += kRun) {
    drop(design, level, std::span(droppable).subspan(i, std::min(kRun, droppable.size() - i)));
  }
}

// All at once, else each half.
void RecomputeSearch::drop(Design& design, Bytes level, std::span<const StorageId> run) {
  Design trial = design;
  for (const StorageId id : run) {
    trial.kinds[id] = ActionKind::kKeep;
  }
  if (fits(bench_.held_on_demand(trial), level)) {
    design = std::move(trial);
  } else if (run.size() > 1) {
    drop(design, level, run.first(run.size() / 2));
    drop(design, level, run.subspan(run.size() / 2));
  }
}

bool RecomputeSearch::exchange(Design& design, Bytes level, size_t first, int num_trials) {
  bool has_improved = false;
  for (size_t i = 0; i < by_size_.size(); ++i) {
    const StorageId id = by_size_[(first + i) % by_size_.size()]->storage;
    if (design.kinds[id] == ActionKind::kSwap || !bench_.may_be(id, ActionKind::kKeep)) {
      continue;
    }
    if (num_trials-- == 0) {
      break;
    }
    Design trial = design;
    if (design.kinds[id] == ActionKind::kRecompute) {
      trial.kinds[id] = ActionKind::kKeep;
      const std::vector<Bytes> held = bench_.held_on_demand(trial);
      if (!fits(held, level)) {
        std::fill(is_rejected_.begin(), is_rejected_.end(), 0);
        is_rejected_[id] = 1;
        // One or two others instead of it.
        for (int k = 0; k < 2 && !fits(bench_.held_on_demand(trial), level); ++k) {
          if (!add_recompute(trial, level, bench_.held_on_demand(trial), kMaxReplacements)) {
            break;
          }
        }
      }
    } else {
      trial.kinds[id] = ActionKind::kRecompute;
    }
    if (fits(bench_.held_on_demand(trial), level)) {
      drop_redundant(trial, level, id);
      has_improved |= bench_.try_design(design, std::move(trial), level);
    }
  }
  return has_improved;
}

} // namespace torchlms
