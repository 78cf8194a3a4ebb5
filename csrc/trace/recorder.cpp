// SPDX-License-Identifier: BSD-3-Clause
#include "trace/recorder.h"

#include <utility>

namespace torchlms {

namespace {

uint64_t combine(uint64_t seed, uint64_t value) {
  // The finaliser of splitmix64 over a sum that depends on the order.
  uint64_t x = seed * 0x9e3779b97f4a7c15u + value + 0x632be59bd9b4e019u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

void set_once(EventId& position, EventId event) {
  if (position == kNone) {
    position = event;
  }
}

} // namespace

Recorder::Recorder(Bytes entry_bytes) {
  trace_.entry_bytes = entry_bytes;
}

StorageId Recorder::add_storage(Bytes size_bytes, bool is_root) {
  StorageRecord storage;
  storage.size_bytes = size_bytes;
  storage.is_root = is_root;
  trace_.storages.push_back(storage);
  return static_cast<StorageId>(trace_.storages.size() - 1);
}

ValueId Recorder::add_value(
    StorageId storage, Bytes offset_bytes, Bytes size_bytes, int32_t version, OpId producer) {
  trace_.values.push_back({storage, offset_bytes, size_bytes, version, producer, /*is_final=*/true});
  return static_cast<ValueId>(trace_.values.size() - 1);
}

OpId Recorder::add_op(const ObservedOp& observed, double time_us, Bytes base_bytes, Bytes base_peak_bytes) {
  const auto id = static_cast<OpId>(trace_.ops.size());
  Op op;
  op.name = intern(observed.name);
  op.first_value = static_cast<int32_t>(trace_.op_values.size());
  op.num_inputs = static_cast<int32_t>(observed.inputs.size());
  op.num_outputs = static_cast<int32_t>(observed.outputs.size());
  op.num_written = static_cast<int32_t>(observed.written.size());
  op.is_replayable =
      observed.is_replayable && observed.demand != Demand::kSave && observed.demand != Demand::kSwap;
  op.demand = observed.demand;
  op.signature = observed.signature;
  op.duration_us = observed.duration_us;
  for (const auto& values : {observed.inputs, observed.outputs, observed.written}) {
    trace_.op_values.insert(trace_.op_values.end(), values.begin(), values.end());
  }
  trace_.prefix_signatures.push_back(combine(trace_.signature(), observed.signature));
  trace_.ops.push_back(op);
  append_event({EventKind::kOp, id, time_us, base_bytes, base_peak_bytes});
  return id;
}

EventId Recorder::add_event(
    EventKind kind, StorageId storage, double time_us, Bytes base_bytes, Bytes base_peak_bytes) {
  const EventId id = append_event({kind, storage, time_us, base_bytes, base_peak_bytes});
  StorageRecord& record = trace_.storages[storage];
  record.num_packs += kind == EventKind::kPack ? 1 : 0;
  if (!record.is_managed && kind != EventKind::kFree) {
    return id;
  }
  switch (kind) {
    case EventKind::kOp:
      break;
    case EventKind::kPack:
      set_once(record.first_pack, id);
      break;
    case EventKind::kDead:
      set_once(record.dead, id);
      break;
    case EventKind::kUnpack:
      set_once(record.first_unpack, id);
      record.last_unpack = id;
      break;
    case EventKind::kFree:
      set_once(record.freed, id);
      break;
  }
  return id;
}

void Recorder::set_managed(StorageId storage) {
  trace_.storages[storage].is_managed = true;
}

void Recorder::set_opaque(StorageId storage) {
  trace_.storages[storage].is_opaque = true;
}

void Recorder::set_outlives_step(StorageId storage) {
  trace_.storages[storage].outlives_step = true;
}

void Recorder::set_changed(ValueId value) {
  trace_.values[value].is_final = false;
}

void Recorder::add_packed_bytes(StorageId storage, Bytes size_bytes) {
  trace_.storages[storage].packed_bytes += size_bytes;
}

void Recorder::set_backward_node(std::string_view name) {
  backward_node_.assign(name);
}

void Recorder::end_forward() {
  if (!is_backward_) {
    is_backward_ = true;
    trace_.forward_end = static_cast<EventId>(trace_.events.size());
  }
}

Trace Recorder::finish() {
  end_forward();
  Trace trace = std::move(trace_);
  *this = Recorder();
  return trace;
}

int32_t Recorder::intern(std::string_view name) {
  const auto known = name_ids_.find(name);
  if (known != name_ids_.end()) {
    return known->second;
  }
  const auto id = static_cast<int32_t>(trace_.op_names.size());
  trace_.op_names.emplace_back(name);
  name_ids_.emplace(name, id);
  return id;
}

EventId Recorder::append_event(const Event& event) {
  if (is_backward_ && event.base_peak_bytes > backward_peak_bytes_) {
    backward_peak_bytes_ = event.base_peak_bytes;
    trace_.backward_peak_node = backward_node_;
  }
  trace_.events.push_back(event);
  return static_cast<EventId>(trace_.events.size() - 1);
}

} // namespace torchlms
