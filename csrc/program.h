// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "export.h"
#include "plan/plan.h"
#include "plan/regions.h"
#include "trace/trace.h"

namespace torchlms {

// A recorded step and the plan for it, in the form that a step follows: actions attached to counts of
// ops and unpacks, which are the same in every run of the program, not to events, which are not quite
// (the moment when Python drops a reference may move by an op). Immutable, hence thread-safe.
class TORCHLMS_EXPORT Program {
 public:
  // geometry: per op, the running signature of operators and shapes alone.
  // entry_bytes: base bytes at scope entry that the plan was made for.
  Program(Trace trace, Plan plan, std::vector<uint64_t> geometry, Bytes entry_bytes, bool has_room);

  const Trace& trace() const {
    return trace_;
  }
  const Plan& plan() const {
    return plan_;
  }
  const std::vector<uint64_t>& geometry() const {
    return geometry_;
  }
  Bytes entry_bytes() const {
    return entry_bytes_;
  }
  // Nothing is moved and the peak leaves room: saved tensors need no hooks.
  bool only_watches() const {
    return only_watches_;
  }
  bool swaps(StorageId storage) const {
    return plan_.actions[storage].kind == ActionKind::kSwap;
  }

  bool recomputes(StorageId storage) const {
    return plan_.actions[storage].kind == ActionKind::kRecompute;
  }
  // What makes it again. Requires: recomputes(storage).
  const Region* region(StorageId storage) const {
    return &regions_.at(storage);
  }
  // A region runs this op again.
  bool captures(OpId op) const {
    return op < static_cast<OpId>(is_captured_.size()) && is_captured_[op];
  }
  // A region reads it, and autograd does not save it.
  bool holds(StorageId storage) const {
    return storage < static_cast<StorageId>(is_held_.size()) && is_held_[storage];
  }

  // The plan file: plan and trace.
  std::string to_json() const;

  using Ids = std::span<const std::pair<int32_t, StorageId>>;
  // Storages whose blocks must be free before op number `op` starts.
  Ids releases_before_op(int32_t op) const;
  // Storages whose blocks must be free when unpack number `unpack` returns.
  Ids releases_at_unpack(int32_t unpack) const;
  // The storage of unpack number `unpack`; kNone when the recorded step had fewer.
  StorageId unpacked(int32_t unpack) const {
    return unpack < static_cast<int32_t>(unpacked_.size()) ? unpacked_[unpack] : kNone;
  }
  // Prefetches to issue once `num_unpacks` unpacks have happened.
  Ids swap_ins_after(int32_t num_unpacks) const;

 private:
  void attach_swaps();
  void attach_regions();

  Trace trace_;
  Plan plan_;
  std::vector<uint64_t> geometry_;
  Bytes entry_bytes_;
  bool only_watches_;
  std::vector<StorageId> unpacked_;
  std::map<StorageId, Region> regions_; // of the storages that are recomputed
  std::vector<bool> is_captured_; // by OpId; empty: none
  std::vector<bool> is_held_; // by StorageId; empty: none
  // Sorted by the first member.
  std::vector<std::pair<int32_t, StorageId>> op_releases_;
  std::vector<std::pair<int32_t, StorageId>> unpack_releases_;
  std::vector<std::pair<int32_t, StorageId>> swap_ins_;
};
using ProgramPtr = std::shared_ptr<const Program>;

} // namespace torchlms
