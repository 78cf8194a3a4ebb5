// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "export.h"
#include "trace/trace.h"

namespace torchlms {

// An op that has returned, as the observer saw it; see Op.
struct ObservedOp {
  std::string_view name;
  uint64_t signature = 0;
  double duration_us = 0;
  std::span<const ValueId> inputs = {};
  std::span<const ValueId> outputs = {};
  std::span<const ValueId> written = {};
  bool is_replayable = false;
  Demand demand = Demand::kNone;
};

// Turns what happens in one step into a Trace; its only writer. Called for every op: once the names of
// the operators have been seen, a call appends to vectors and does nothing else. Thread-safety: none.
// Owns the trace until finish(). Fails only where a vector cannot grow.
class TORCHLMS_EXPORT Recorder {
 public:
  // entry_bytes: held by the device's allocator at scope entry.
  explicit Recorder(Bytes entry_bytes = 0);

  // A storage that was freed and is packed again is a new storage.
  StorageId add_storage(Bytes size_bytes, bool is_root);
  ValueId add_value(StorageId storage, Bytes offset_bytes, Bytes size_bytes, int32_t version, OpId producer);
  // Also appends the op's event.
  OpId add_op(const ObservedOp& observed, double time_us, Bytes base_bytes, Bytes base_peak_bytes);
  // Also fills in the storage's positions. Requires: kind is not kOp.
  EventId add_event(
      EventKind kind, StorageId storage, double time_us, Bytes base_bytes, Bytes base_peak_bytes);

  // Requires: no event of the storage yet.
  void set_managed(StorageId storage);
  void set_opaque(StorageId storage);
  void set_outlives_step(StorageId storage);
  // The version went on after this value.
  void set_changed(ValueId value);
  // The size of one packed view.
  void add_packed_bytes(StorageId storage, Bytes size_bytes);
  // The autograd node that is about to run.
  void set_backward_node(std::string_view name);
  // Events from here on belong to backward. Only the first call counts.
  void end_forward();

  bool is_backward() const {
    return is_backward_;
  }
  const Trace& trace() const {
    return trace_;
  }
  // Hands the trace out; the recorder is as new afterwards.
  Trace finish();

 private:
  struct NameHash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  int32_t intern(std::string_view name);
  EventId append_event(const Event& event);

  Trace trace_;
  std::unordered_map<std::string, int32_t, NameHash, std::equal_to<>> name_ids_;
  bool is_backward_ = false;
  Bytes backward_peak_bytes_ = 0;
  std::string backward_node_;
};

} // namespace torchlms
