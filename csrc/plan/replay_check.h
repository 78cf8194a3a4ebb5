// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <set>
#include <string>
#include <vector>

#include "trace/trace.h"

namespace torchlms {

// How a storage can be rebuilt, or why it cannot.
struct ReplayCheck {
  std::string fault; // empty: it can be rebuilt
  std::set<OpId> ops;
  std::set<StorageId> leaves;
  Bytes extra_bytes = 0; // highest bytes held during the replay above those before it
};

// The slow obvious answer, for the validator; shares no code with Regions. Refers to the trace.
// Thread-safety: none.
class ReplayChecker {
 public:
  explicit ReplayChecker(const Trace& trace);

  ReplayCheck check(StorageId storage) const;

 private:
  using Ids = std::set<int32_t>;

  Ids storages_of(std::span<const ValueId> values) const;
  // With everything kept: between the events before `event` and `event` itself.
  Bytes recorded_managed(EventId event) const;
  // How far the op's memory rose in the recorded step.
  Bytes recorded_rise(OpId op) const;
  bool makes(OpId op, StorageId storage) const;
  // Whether the bytes of an argument are still there when the op runs again.
  bool lasts(ValueId value, OpId reader, EventId dropped) const;
  // Adds writers of members and arguments that do not last until nothing changes.
  void close(EventId dropped, Ids& members, Ids& ops) const;
  std::string fault_of_storage(StorageId id) const;
  std::string fault_of_member(StorageId id) const;
  std::string fault_of_op(OpId op, const Ids& members, OpId last) const;
  Bytes highest_bytes(StorageId id, const Ids& members, const Ids& ops) const;

  const Trace& trace_;
  std::vector<Ids> reads_; // per op
  std::vector<Ids> writes_; // per op
  std::vector<Ids> writers_; // per storage
  std::vector<EventId> events_; // per op
};

} // namespace torchlms
