// SPDX-License-Identifier: BSD-3-Clause
#include "plan/flips.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

namespace torchlms {

namespace {

constexpr size_t kRun = 32; // swaps turned at once
constexpr size_t kNumPaired = 32;

// Of those that may be moved or rebuilt.
std::vector<StorageId> largest_first(Workbench& bench, const Design& design) {
  std::vector<StorageId> storages;
  for (const Candidate& candidate : bench.candidates(design)) {
    storages.push_back(candidate.storage);
  }
  for (const Region& region : bench.regions().all()) {
    if (design.kinds[region.storage] == ActionKind::kRecompute) {
      storages.push_back(region.storage);
    }
  }
  const std::vector<StorageRecord>& records = bench.trace().storages;
  std::sort(storages.begin(), storages.end(), [&records](StorageId a, StorageId b) {
    const Bytes x = records[a].size_bytes;
    const Bytes y = records[b].size_bytes;
    return x != y ? x > y : a < b;
  });
  return storages;
}

bool turn(Workbench& bench, Design& design, Bytes level, std::span<const StorageId> run, int& num_trials) {
  if (run.empty() || num_trials <= 0) {
    return false;
  }
  Design trial = design;
  size_t num_turned = 0;
  for (const StorageId id : run) {
    if (trial.kinds[id] == ActionKind::kSwap) {
      trial.kinds[id] = ActionKind::kRecompute;
      ++num_turned;
    }
  }
  if (num_turned == 0) {
    return false;
  }
  --num_trials;
  if (bench.try_design(design, std::move(trial), level)) {
    return true;
  }
  if (num_turned == 1) {
    return false;
  }
  const size_t half = run.size() / 2;
  const bool has_improved = turn(bench, design, level, run.first(half), num_trials);
  return turn(bench, design, level, run.subspan(half), num_trials) || has_improved;
}

} // namespace

bool turn_swaps(Workbench& bench, Design& design, Bytes level, int num_trials) {
  std::vector<StorageId> swapped;
  for (const StorageId id : largest_first(bench, design)) {
    if (design.kinds[id] == ActionKind::kSwap && bench.may_be(id, ActionKind::kRecompute)) {
      swapped.push_back(id);
    }
  }
  bool has_improved = false;
  for (size_t i = 0; i < swapped.size(); i += kRun) {
    const auto run = std::span(swapped).subspan(i, std::min(kRun, swapped.size() - i));
    has_improved |= turn(bench, design, level, run, num_trials);
  }
  return has_improved;
}

bool flip_each(Workbench& bench, Design& design, Bytes level, size_t first, int num_trials) {
  bool has_improved = false;
  const std::vector<StorageId> largest = largest_first(bench, design);
  for (size_t i = 0; i < largest.size(); ++i) {
    const StorageId id = largest[(first + i) % largest.size()];
    for (const ActionKind kind : {ActionKind::kKeep, ActionKind::kRecompute, ActionKind::kSwap}) {
      if (design.kinds[id] == kind || !bench.may_be(id, kind)) {
        continue;
      }
      if (num_trials-- <= 0) {
        return has_improved;
      }
      Design trial = design;
      trial.kinds[id] = kind;
      has_improved |= bench.try_design(design, std::move(trial), level);
    }
  }
  return has_improved;
}

bool flip_alike(Workbench& bench, Design& design, Bytes level, int num_trials) {
  const Trace& trace = bench.trace();
  std::map<std::pair<Bytes, int32_t>, std::vector<StorageId>> kinds;
  for (const StorageId id : largest_first(bench, design)) {
    kinds[{trace.storages[id].size_bytes, bench.maker(id)}].push_back(id);
  }
  std::vector<const std::vector<StorageId>*> by_bytes;
  for (const auto& [kind, alike] : kinds) {
    if (alike.size() > 1) {
      by_bytes.push_back(&alike);
    }
  }
  const auto bytes = [&trace](const std::vector<StorageId>* alike) {
    return trace.storages[alike->front()].size_bytes * static_cast<Bytes>(alike->size());
  };
  std::stable_sort(
      by_bytes.begin(), by_bytes.end(), [&](const auto* a, const auto* b) { return bytes(a) > bytes(b); });
  bool has_improved = false;
  for (const std::vector<StorageId>* const alike : by_bytes) {
    for (const ActionKind kind : {ActionKind::kKeep, ActionKind::kRecompute, ActionKind::kSwap}) {
      Design trial = design;
      for (const StorageId id : *alike) {
        trial.kinds[id] = bench.may_be(id, kind) ? kind : trial.kinds[id];
      }
      if (trial.kinds == design.kinds) {
        continue;
      }
      if (num_trials-- <= 0) {
        return has_improved;
      }
      has_improved |= bench.try_design(design, std::move(trial), level);
    }
  }
  return has_improved;
}

bool exchange_pairs(Workbench& bench, Design& design, Bytes level, int num_trials) {
  std::vector<StorageId> largest = largest_first(bench, design);
  largest.resize(std::min(largest.size(), kNumPaired));
  bool has_improved = false;
  for (size_t i = 0; i < largest.size(); ++i) {
    for (size_t j = i + 1; j < largest.size(); ++j) {
      const StorageId a = largest[i];
      const StorageId b = largest[j];
      if (design.kinds[a] == design.kinds[b] || !bench.may_be(a, design.kinds[b]) ||
          !bench.may_be(b, design.kinds[a])) {
        continue;
      }
      if (num_trials-- <= 0) {
        return has_improved;
      }
      Design trial = design;
      std::swap(trial.kinds[a], trial.kinds[b]);
      has_improved |= bench.try_design(design, std::move(trial), level);
    }
  }
  return has_improved;
}

} // namespace torchlms
