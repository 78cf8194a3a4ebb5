// SPDX-License-Identifier: BSD-3-Clause
#include "plan/replay_check.h"

#include <algorithm>
#include <map>

namespace torchlms {

namespace {

constexpr size_t kMostOps = 64;
constexpr Bytes kHeldByRecord = 4096;

} // namespace

ReplayChecker::ReplayChecker(const Trace& trace) : trace_(trace), writers_(trace.storages.size()) {
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    reads_.push_back(storages_of(trace.inputs(trace.ops[i])));
    writes_.push_back(storages_of(trace.written(trace.ops[i])));
    for (const StorageId storage : writes_.back()) {
      writers_[storage].insert(static_cast<OpId>(i));
    }
  }
  for (size_t i = 0; i < trace.events.size(); ++i) {
    if (trace.events[i].kind == EventKind::kOp) {
      events_.push_back(static_cast<EventId>(i));
    }
  }
}

ReplayChecker::Ids ReplayChecker::storages_of(std::span<const ValueId> values) const {
  Ids storages;
  for (const ValueId value : values) {
    storages.insert(trace_.values[value].storage);
  }
  return storages;
}

Bytes ReplayChecker::recorded_managed(EventId event) const {
  Bytes held = 0;
  for (const StorageRecord& storage : trace_.storages) {
    const bool is_held = storage.is_managed && storage.first_pack != kNone && event > storage.first_pack &&
        (storage.freed == kNone || event <= storage.freed);
    held += is_held ? storage.size_bytes : 0;
  }
  return held;
}

Bytes ReplayChecker::recorded_rise(OpId op) const {
  const EventId start = op == 0 ? kNone : events_[op - 1]; // the end of the previous op
  Bytes lowest =
      start == kNone ? trace_.entry_bytes : trace_.events[start].base_bytes + recorded_managed(start + 1);
  Bytes highest = 0;
  for (EventId event = start + 1; event <= events_[op]; ++event) {
    highest = std::max(highest, trace_.events[event].base_peak_bytes + recorded_managed(event));
    if (event < events_[op]) {
      lowest = std::min(lowest, trace_.events[event].base_bytes + recorded_managed(event + 1));
    }
  }
  Bytes made = 0;
  for (const StorageId storage : writes_[op]) {
    made += makes(op, storage) ? trace_.storages[storage].size_bytes : 0;
  }
  return std::max(highest - lowest, made);
}

bool ReplayChecker::makes(OpId op, StorageId storage) const {
  const Ids& writers = writers_[storage];
  return !trace_.storages[storage].is_root && !writers.empty() && *writers.begin() == op &&
      !reads_[op].contains(storage);
}

bool ReplayChecker::lasts(ValueId value, OpId reader, EventId dropped) const {
  const Value& argument = trace_.values[value];
  const StorageRecord& storage = trace_.storages[argument.storage];
  const Ids& writers = writers_[argument.storage];
  if (!argument.is_final || storage.is_opaque || writers.upper_bound(reader) != writers.end()) {
    return false;
  }
  if (storage.size_bytes <= kHeldByRecord || (storage.is_root && storage.outlives_step)) {
    return true;
  }
  const bool is_saved_by_then = !storage.is_managed || storage.first_pack < dropped;
  const bool is_saved_still = storage.freed == kNone || storage.freed > dropped;
  return storage.num_packs > 0 && is_saved_by_then && is_saved_still;
}

void ReplayChecker::close(EventId dropped, Ids& members, Ids& ops) const {
  size_t size = 0;
  while (members.size() + ops.size() > size && ops.size() <= kMostOps) {
    size = members.size() + ops.size();
    for (const StorageId member : members) {
      ops.insert(writers_[member].begin(), writers_[member].end());
    }
    for (const OpId op : ops) {
      for (const ValueId value : trace_.inputs(trace_.ops[op])) {
        const StorageId read = trace_.values[value].storage;
        if (!writes_[op].contains(read) && !lasts(value, op, dropped)) {
          members.insert(read);
        }
      }
    }
  }
}

std::string ReplayChecker::fault_of_storage(StorageId id) const {
  const StorageRecord& storage = trace_.storages[id];
  if (!storage.is_managed || storage.first_pack == kNone || storage.dead < storage.first_pack ||
      storage.dead >= trace_.forward_end) {
    return "autograd alone never holds it in the forward pass";
  }
  if (storage.first_unpack < trace_.forward_end ||
      storage.first_unpack + 1 >= static_cast<EventId>(trace_.events.size())) {
    return "backward does not ask for it in time";
  }
  return "";
}

std::string ReplayChecker::fault_of_member(StorageId id) const {
  const StorageRecord& storage = trace_.storages[id];
  const std::string name = "storage " + std::to_string(id);
  if (storage.is_root || storage.is_opaque) {
    return name + " is not written by ops alone";
  }
  if (writers_[id].empty() || !makes(*writers_[id].begin(), id)) {
    return name + " is made by no op";
  }
  for (const ValueId value : trace_.written(trace_.ops[*writers_[id].rbegin()])) {
    if (trace_.values[value].storage == id && !trace_.values[value].is_final) {
      return name + " is changed after its last op";
    }
  }
  return "";
}

std::string ReplayChecker::fault_of_op(OpId op, const Ids& members, OpId last) const {
  const std::string name = "op " + std::to_string(op);
  if (!trace_.ops[op].is_replayable) {
    return name + " may not run again";
  }
  if (op > last) {
    return name + " would run after the storage is there";
  }
  for (const StorageId storage : writes_[op]) {
    if (!members.contains(storage) && !makes(op, storage) && !reads_[op].contains(storage)) {
      return name + " would overwrite storage " + std::to_string(storage);
    }
  }
  return "";
}

Bytes ReplayChecker::highest_bytes(StorageId id, const Ids& members, const Ids& ops) const {
  std::map<StorageId, OpId> first;
  std::map<StorageId, OpId> last;
  for (const OpId op : ops) {
    for (const Ids* const used : {&reads_[op], &writes_[op]}) {
      for (const StorageId storage : *used) {
        first.emplace(storage, op);
        last[storage] = op;
      }
    }
  }
  Bytes highest = 0;
  for (const OpId op : ops) {
    Bytes held = 0;
    for (const StorageId member : members) {
      const bool is_needed = member == id || last[member] >= op;
      held += first[member] < op && is_needed ? trace_.storages[member].size_bytes : 0;
    }
    for (const StorageId written : writes_[op]) {
      const bool is_scratch = !members.contains(written) && reads_[op].contains(written);
      held += is_scratch ? trace_.storages[written].size_bytes : 0;
    }
    highest = std::max(highest, held + recorded_rise(op));
  }
  return highest;
}

ReplayCheck ReplayChecker::check(StorageId id) const {
  ReplayCheck check;
  check.fault = fault_of_storage(id);
  Ids members = {id};
  if (check.fault.empty()) {
    close(trace_.storages[id].dead, members, check.ops);
    check.fault = check.ops.size() > kMostOps ? "more than 64 ops would run" : "";
  }
  for (const StorageId member : members) {
    check.fault = check.fault.empty() ? fault_of_member(member) : check.fault;
  }
  for (const OpId op : check.ops) {
    check.fault = check.fault.empty() ? fault_of_op(op, members, *writers_[id].rbegin()) : check.fault;
  }
  if (!check.fault.empty()) {
    return check;
  }
  for (const OpId op : check.ops) {
    for (const StorageId read : reads_[op]) {
      if (!members.contains(read) && !writes_[op].contains(read)) {
        check.leaves.insert(read);
      }
    }
  }
  check.extra_bytes = highest_bytes(id, members, check.ops);
  return check;
}

} // namespace torchlms
