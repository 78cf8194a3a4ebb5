// SPDX-License-Identifier: BSD-3-Clause
#include "program.h"

#include <algorithm>

namespace torchlms {

namespace {

Program::Ids equal_range(const std::vector<std::pair<int32_t, StorageId>>& sorted, int32_t key) {
  const auto by_key = [](const auto& a, const auto& b) { return a.first < b.first; };
  const auto range =
      std::equal_range(sorted.begin(), sorted.end(), std::pair<int32_t, StorageId>{key, kNone}, by_key);
  return {range.first, range.second};
}

} // namespace

Program::Program(Trace trace, Plan plan, std::vector<uint64_t> geometry, Bytes entry_bytes, bool has_room)
    : trace_(std::move(trace)),
      plan_(std::move(plan)),
      geometry_(std::move(geometry)),
      entry_bytes_(entry_bytes),
      only_watches_(plan_.moves_nothing() && has_room && !geometry_.empty()) {
  attach_swaps();
  attach_regions();
}

void Program::attach_regions() {
  const bool recomputes = std::any_of(plan_.actions.begin(), plan_.actions.end(), [](const Action& action) {
    return action.kind == ActionKind::kRecompute;
  });
  if (!recomputes) {
    return;
  }
  const Regions regions(trace_);
  is_captured_.resize(trace_.ops.size());
  is_held_.resize(trace_.storages.size());
  for (size_t i = 0; i < plan_.actions.size(); ++i) {
    const auto id = static_cast<StorageId>(i);
    if (!this->recomputes(id)) {
      continue;
    }
    const Region& region = regions_.emplace(id, *regions.of(id)).first->second;
    for (const OpId op : region.ops) {
      is_captured_[op] = true;
    }
    for (const StorageId leaf : region.leaves) {
      is_held_[leaf] = is_held_[leaf] || trace_.storages[leaf].num_packs == 0;
    }
  }
}

void Program::attach_swaps() {
  std::vector<int32_t> ops_until(trace_.events.size()); // events [0, i] include so many ops
  std::vector<int32_t> unpacks_until(trace_.events.size());
  int32_t num_ops = 0;
  int32_t num_unpacks = 0;
  for (size_t i = 0; i < trace_.events.size(); ++i) {
    num_ops += trace_.events[i].kind == EventKind::kOp ? 1 : 0;
    if (trace_.events[i].kind == EventKind::kUnpack) {
      unpacked_.push_back(trace_.events[i].subject);
      ++num_unpacks;
    }
    ops_until[i] = num_ops;
    unpacks_until[i] = num_unpacks;
  }
  const auto num_all_ops = static_cast<int32_t>(trace_.ops.size());
  for (size_t id = 0; id < plan_.actions.size(); ++id) {
    const Action& action = plan_.actions[id];
    if (action.kind != ActionKind::kSwap || action.release == kNone) {
      continue;
    }
    const auto storage = static_cast<StorageId>(id);
    if (action.release < trace_.forward_end && ops_until[action.release] < num_all_ops) {
      op_releases_.emplace_back(ops_until[action.release], storage);
    } else {
      // At the unpack it stands at, or at the first.
      unpack_releases_.emplace_back(std::max(unpacks_until[action.release] - 1, 0), storage);
    }
  }
  for (const StorageId storage : plan_.swap_in_order) {
    // Any other position stands for "on demand".
    const EventId swap_in = plan_.actions[storage].swap_in;
    if (swap_in != kNone &&
        (swap_in == trace_.forward_end - 1 || trace_.events[swap_in].kind == EventKind::kUnpack)) {
      swap_ins_.emplace_back(unpacks_until[swap_in], storage);
    }
  }
  const auto by_count = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::stable_sort(op_releases_.begin(), op_releases_.end(), by_count);
  std::stable_sort(unpack_releases_.begin(), unpack_releases_.end(), by_count);
  std::stable_sort(swap_ins_.begin(), swap_ins_.end(), by_count);
}

Program::Ids Program::releases_before_op(int32_t op) const {
  return equal_range(op_releases_, op);
}

Program::Ids Program::releases_at_unpack(int32_t unpack) const {
  return equal_range(unpack_releases_, unpack);
}

Program::Ids Program::swap_ins_after(int32_t num_unpacks) const {
  return equal_range(swap_ins_, num_unpacks);
}

std::string Program::to_json() const {
  return "{\"format\":\"torchlms.plan_file\",\"version\":1,\"plan\":" + plan_.to_json() +
      ",\"trace\":" + trace_.to_json() + "}";
}

} // namespace torchlms
