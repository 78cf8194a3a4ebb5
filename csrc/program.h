// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "export.h"
#include "plan/plan.h"
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

  // The plan file: plan and trace.
  std::string to_json() const;

  using Ids = std::span<const std::pair<int32_t, StorageId>>;
  // Storages whose blocks must be free before op number `op` starts.
  Ids releases_before_op(int32_t op) const;
  // Storages whose blocks must be free before unpack number `unpack`.
  Ids releases_before_unpack(int32_t unpack) const;
  // The storage of unpack number `unpack`; kNone when the recorded step had fewer.
  StorageId unpacked(int32_t unpack) const {
    return unpack < static_cast<int32_t>(unpacked_.size()) ? unpacked_[unpack] : kNone;
  }
  // Prefetches to issue once `num_unpacks` unpacks have happened.
  Ids swap_ins_after(int32_t num_unpacks) const;

 private:
  Trace trace_;
  Plan plan_;
  std::vector<uint64_t> geometry_;
  Bytes entry_bytes_;
  bool only_watches_;
  std::vector<StorageId> unpacked_;
  // Sorted by the first member.
  std::vector<std::pair<int32_t, StorageId>> op_releases_;
  std::vector<std::pair<int32_t, StorageId>> unpack_releases_;
  std::vector<std::pair<int32_t, StorageId>> swap_ins_;
};
using ProgramPtr = std::shared_ptr<const Program>;

} // namespace torchlms
