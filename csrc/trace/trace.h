// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "export.h"
#include "trace/types.h"

namespace torchlms {

// What happened at one position of a step. The subject is an OpId for kOp and a StorageId otherwise.
enum class EventKind : uint8_t {
  kOp, // a differentiable op of the forward pass has returned
  kPack, // autograd saved a view of the storage
  kDead, // the program dropped its last reference: from here on only autograd holds the storage
  kUnpack, // backward asked for a view of the storage
  kFree, // autograd dropped its last view
};

// One entry of the step. `base` is everything the device's allocator holds except the managed
// storages (those that torchlms may move) that are resident: it does not depend on the plan, so
// held(t) = base(t) + resident managed bytes, for any plan.
struct Event {
  EventKind kind = EventKind::kOp;
  int32_t subject = kNone;
  double time_us = 0; // since scope entry, time spent waiting for the link left out
  Bytes base_bytes = 0; // at the event
  Bytes base_peak_bytes = 0; // highest between the previous event and this one
};

// A tensor as ops see it: a region of a storage at one version of its data.
struct Value {
  StorageId storage = kNone;
  Bytes offset_bytes = 0;
  Bytes size_bytes = 0; // span from the first to the last element
  int32_t version = 0;
  OpId producer = kNone; // kNone: a root (parameter, input, made unseen)
  bool is_final = true; // when the step ended, the version was still this one
};

// Its name and its values lie in the trace: an op costs no allocation of its own.
struct Op {
  int32_t name = kNone; // index into Trace::op_names
  int32_t first_value = 0; // index into Trace::op_values: the inputs, the outputs, the written
  int32_t num_inputs = 0;
  int32_t num_outputs = 0;
  int32_t num_written = 0;
  bool is_replayable = false; // run again on the same bytes it gives the same bytes, and changes nothing else
  Demand demand = Demand::kNone; // kSave and kSwap: not replayable either
  uint64_t signature = 0; // operator, geometry of the tensor arguments, which storages they are
  double duration_us = 0;
};

// A storage that an op read or wrote, or that autograd saved. Event positions are kNone where the
// thing did not happen. Only managed storages, which are the planner's candidates, have positions other
// than `freed`.
struct StorageRecord {
  Bytes size_bytes = 0; // what the allocator holds for it
  bool is_root = false; // alive at scope entry: never moved
  bool is_managed = false; // saved by autograd, big enough and of a kind that may be moved
  bool is_opaque = false; // written by something that was not seen as an op
  bool outlives_step = false; // the program held it when the step had ended
  int32_t num_packs = 0;
  Bytes packed_bytes = 0; // sum over packs of the views' own sizes
  EventId first_pack = kNone;
  EventId dead = kNone;
  EventId first_unpack = kNone;
  EventId last_unpack = kNone;
  EventId freed = kNone;
};

// One recorded forward + backward, as a plain value. Written by Recorder only. Thread-safety: none.
struct TORCHLMS_EXPORT Trace {
  static constexpr int kFormatVersion = 1;

  std::vector<Op> ops;
  std::vector<std::string> op_names; // "aten::convolution", each once
  std::vector<ValueId> op_values;
  std::vector<Value> values;
  std::vector<StorageRecord> storages;
  std::vector<Event> events;
  EventId forward_end = 0; // events before this position belong to the forward pass
  Bytes entry_bytes = 0; // held at scope entry
  std::string backward_peak_node; // autograd node that ran when base peaked in backward
  std::vector<uint64_t> prefix_signatures; // per op: running signature of all ops up to it

  const std::string& name(const Op& op) const {
    return op_names[op.name];
  }
  std::span<const ValueId> inputs(const Op& op) const {
    return std::span(op_values).subspan(op.first_value, op.num_inputs);
  }
  std::span<const ValueId> outputs(const Op& op) const {
    return std::span(op_values).subspan(op.first_value + op.num_inputs, op.num_outputs);
  }
  // What it left changed: the storages that it made, and those that it wrote in place.
  std::span<const ValueId> written(const Op& op) const {
    return std::span(op_values).subspan(op.first_value + op.num_inputs + op.num_outputs, op.num_written);
  }
  uint64_t signature() const {
    return prefix_signatures.empty() ? 0 : prefix_signatures.back();
  }
  // Highest bytes that plain PyTorch would hold: every managed storage resident from pack to free.
  Bytes unlimited_peak_bytes() const;
  // Unique bytes of the storages that autograd saved, roots included.
  Bytes saved_bytes() const;
  double step_us() const {
    return events.empty() ? 0 : events.back().time_us;
  }
  std::string to_json() const;
};

} // namespace torchlms
