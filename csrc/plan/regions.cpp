// SPDX-License-Identifier: BSD-3-Clause
#include "plan/regions.h"

#include <algorithm>
#include <optional>

#include "plan/candidates.h"

namespace torchlms {

namespace {

// The ops that wrote a storage.
struct History {
  std::vector<OpId> writers; // ascending
  bool is_made = false; // by the first of them
  bool is_final = false; // nothing wrote it after the last of them
};

void insert(std::vector<int32_t>& sorted, int32_t id) {
  const auto place = std::lower_bound(sorted.begin(), sorted.end(), id);
  if (place == sorted.end() || *place != id) {
    sorted.insert(place, id);
  }
}

bool has(const std::vector<int32_t>& sorted, int32_t id) {
  return std::binary_search(sorted.begin(), sorted.end(), id);
}

class Builder {
 public:
  explicit Builder(const Trace& trace)
      : trace_(trace), histories_(trace.storages.size()), peaks_(trace.ops.size(), 0) {
    for (size_t i = 0; i < trace.ops.size(); ++i) {
      add_op(static_cast<OpId>(i));
    }
    measure_peaks();
  }

  std::optional<Region> region_of(StorageId storage);

 private:
  StorageId storage_of(ValueId value) const {
    return trace_.values[value].storage;
  }
  bool reads(const Op& op, StorageId storage) const {
    const auto inputs = trace_.inputs(op);
    return std::any_of(
        inputs.begin(), inputs.end(), [&](ValueId value) { return storage_of(value) == storage; });
  }
  bool writes(const Op& op, StorageId storage) const {
    const auto written = trace_.written(op);
    return std::any_of(
        written.begin(), written.end(), [&](ValueId value) { return storage_of(value) == storage; });
  }

  void add_op(OpId id);
  void measure_peaks();

  bool may_be_dropped(const StorageRecord& storage) const;
  bool is_leaf(ValueId value, OpId reader, EventId dead) const;
  bool add_member(StorageId storage);
  bool add_writer(OpId id, EventId dead);
  bool leaves_others_alone(OpId id) const;
  void count_bytes(Region& region) const;

  const Trace& trace_;
  std::vector<History> histories_; // by StorageId
  std::vector<Bytes> peaks_; // per op: highest bytes held during it above those before
  // Of the region that is being built.
  std::vector<StorageId> members_; // the storage itself and the temporaries, sorted
  std::vector<StorageId> to_visit_;
  std::vector<OpId> ops_; // sorted
};

void Builder::add_op(OpId id) {
  const Op& op = trace_.ops[id];
  for (const ValueId value : trace_.written(op)) {
    History& history = histories_[storage_of(value)];
    if (history.writers.empty()) {
      history.is_made = !trace_.storages[storage_of(value)].is_root && !reads(op, storage_of(value));
    }
    if (history.writers.empty() || history.writers.back() != id) {
      history.writers.push_back(id);
    }
    history.is_final = trace_.values[value].is_final;
  }
}

void Builder::measure_peaks() {
  const std::vector<Bytes> held = held_when_kept(trace_);
  Bytes before = trace_.entry_bytes; // the least held between two ops, from which the second grew
  Bytes highest = 0;
  for (size_t i = 0; i < trace_.events.size(); ++i) {
    const Event& event = trace_.events[i];
    highest = std::max(highest, held[i]);
    // What is held after the event: the same managed storages as before it, save one that it adds or frees.
    Bytes after = held[i] - event.base_peak_bytes + event.base_bytes;
    if (event.kind != EventKind::kOp) {
      const StorageRecord& storage = trace_.storages[event.subject];
      const auto position = static_cast<EventId>(i);
      after += storage.is_managed && position == storage.first_pack ? storage.size_bytes : 0;
      after -= storage.is_managed && storage.first_pack != kNone && position == storage.freed
          ? storage.size_bytes
          : 0;
      before = std::min(before, after);
      continue;
    }
    peaks_[event.subject] = highest - std::min(before, highest);
    before = after;
    highest = 0;
  }
  for (size_t i = 0; i < trace_.ops.size(); ++i) {
    Bytes made = 0;
    for (const ValueId value : trace_.written(trace_.ops[i])) {
      const History& history = histories_[storage_of(value)];
      const bool is_maker = history.is_made && history.writers.front() == static_cast<OpId>(i);
      made += is_maker ? trace_.storages[storage_of(value)].size_bytes : 0;
    }
    peaks_[i] = std::max(peaks_[i], made);
  }
}

bool Builder::may_be_dropped(const StorageRecord& storage) const {
  return storage.is_managed && !storage.is_root && storage.first_pack != kNone &&
      storage.dead >= storage.first_pack && storage.dead < trace_.forward_end &&
      storage.first_unpack >= trace_.forward_end &&
      storage.first_unpack + 1 < static_cast<EventId>(trace_.events.size());
}

// Whether the bytes that `reader` read will be there, as they were, from `dead` on until backward needs
// what is to be rebuilt.
bool Builder::is_leaf(ValueId value, OpId reader, EventId dead) const {
  const StorageRecord& storage = trace_.storages[storage_of(value)];
  const std::vector<OpId>& writers = histories_[storage_of(value)].writers;
  if (storage.is_opaque || !trace_.values[value].is_final || (!writers.empty() && writers.back() > reader)) {
    return false;
  }
  const bool is_saved = storage.num_packs > 0 && (storage.freed == kNone || storage.freed > dead) &&
      (!storage.is_managed || storage.first_pack < dead);
  return is_saved || (storage.is_root && storage.outlives_step) || storage.size_bytes <= Region::kSmallBytes;
}

bool Builder::add_member(StorageId id) {
  const StorageRecord& storage = trace_.storages[id];
  const History& history = histories_[id];
  if (storage.is_root || storage.is_opaque || !history.is_made || !history.is_final) {
    return false;
  }
  insert(members_, id);
  to_visit_.push_back(id);
  return true;
}

bool Builder::add_writer(OpId id, EventId dead) {
  if (has(ops_, id)) {
    return true;
  }
  const Op& op = trace_.ops[id];
  if (!op.is_replayable || ops_.size() == Region::kMaxOps) {
    return false;
  }
  insert(ops_, id);
  const auto inputs = trace_.inputs(op);
  return std::all_of(inputs.begin(), inputs.end(), [&](ValueId value) {
    const StorageId read = storage_of(value);
    const bool is_scratch = writes(op, read);
    return has(members_, read) || is_scratch || is_leaf(value, id, dead) || add_member(read);
  });
}

bool Builder::leaves_others_alone(OpId id) const {
  const Op& op = trace_.ops[id];
  const auto written = trace_.written(op);
  return std::all_of(written.begin(), written.end(), [&](ValueId value) {
    const StorageId storage = storage_of(value);
    const History& history = histories_[storage];
    const bool is_maker = history.is_made && history.writers.front() == id;
    return is_maker || has(members_, storage) || reads(op, storage);
  });
}

std::optional<Region> Builder::region_of(StorageId id) {
  members_.clear();
  to_visit_.clear();
  ops_.clear();
  const EventId dead = trace_.storages[id].dead;
  if (!may_be_dropped(trace_.storages[id]) || !add_member(id)) {
    return std::nullopt;
  }
  while (!to_visit_.empty()) {
    const StorageId member = to_visit_.back();
    to_visit_.pop_back();
    const std::vector<OpId>& writers = histories_[member].writers;
    if (!std::all_of(writers.begin(), writers.end(), [&](OpId op) { return add_writer(op, dead); })) {
      return std::nullopt;
    }
  }
  // Nothing runs after the storage is there: this also keeps two regions from reading each other's storage.
  const bool ends_with_it = ops_.back() == histories_[id].writers.back();
  if (!ends_with_it ||
      !std::all_of(ops_.begin(), ops_.end(), [this](OpId op) { return leaves_others_alone(op); })) {
    return std::nullopt;
  }
  Region region;
  region.storage = id;
  region.ops = ops_;
  region.temporaries = members_;
  std::erase(region.temporaries, id);
  for (const OpId op : ops_) {
    region.replay_us += trace_.ops[op].duration_us;
    for (const ValueId value : trace_.inputs(trace_.ops[op])) {
      const StorageId read = storage_of(value);
      if (!has(members_, read) && !writes(trace_.ops[op], read)) {
        insert(region.leaves, read);
      }
    }
  }
  count_bytes(region);
  return region;
}

void Builder::count_bytes(Region& region) const {
  std::vector<OpId> last_uses(members_.size(), kNone); // of the temporaries
  const auto for_members = [this](std::span<const ValueId> values, auto&& visit) {
    for (const ValueId value : values) {
      const auto place = std::lower_bound(members_.begin(), members_.end(), storage_of(value));
      if (place != members_.end() && *place == storage_of(value)) {
        visit(place - members_.begin());
      }
    }
  };
  for (const OpId id : region.ops) {
    const auto use = [&](ptrdiff_t member) { last_uses[member] = id; };
    for_members(trace_.inputs(trace_.ops[id]), use);
    for_members(trace_.written(trace_.ops[id]), use);
  }
  Bytes held = 0;
  for (const OpId id : region.ops) {
    const Op& op = trace_.ops[id];
    Bytes scratch = 0;
    for (const ValueId value : trace_.inputs(op)) {
      const StorageId read = storage_of(value);
      scratch += writes(op, read) && !has(members_, read) ? trace_.storages[read].size_bytes : 0;
    }
    region.extra_bytes = std::max(region.extra_bytes, held + scratch + peaks_[id]);
    for (size_t i = 0; i < members_.size(); ++i) {
      const Bytes size = trace_.storages[members_[i]].size_bytes;
      held += histories_[members_[i]].writers.front() == id ? size : 0;
      held -= members_[i] != region.storage && last_uses[i] == id ? size : 0;
    }
    region.extra_bytes = std::max(region.extra_bytes, held);
  }
}

} // namespace

Regions::Regions(const Trace& trace) : index_(trace.storages.size(), kNone) {
  Builder builder(trace);
  for (size_t i = 0; i < trace.storages.size(); ++i) {
    if (auto region = builder.region_of(static_cast<StorageId>(i))) {
      index_[i] = static_cast<int32_t>(regions_.size());
      regions_.push_back(std::move(*region));
    }
  }
}

} // namespace torchlms
