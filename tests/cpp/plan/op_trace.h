// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "trace/recorder.h"

namespace torchlms {

// Writes traces of ops that read and write storages; the base follows what is alive. An op takes 10 us.
class OpTrace {
 public:
  struct Settings {
    bool is_replayable = true;
    Bytes workspace_bytes = 0; // held while the op runs
  };

  // Alive at scope entry and after the step.
  StorageId root(Bytes size_bytes) {
    const StorageId id = recorder_.add_storage(size_bytes, true);
    recorder_.set_outlives_step(id);
    sizes_[id] = size_bytes;
    values_[id] = recorder_.add_value(id, 0, size_bytes, 0, kNone);
    base_bytes_ += size_bytes;
    return id;
  }
  // Made by the first op that writes it.
  StorageId storage(Bytes size_bytes) {
    const StorageId id = recorder_.add_storage(size_bytes, false);
    sizes_[id] = size_bytes;
    return id;
  }
  OpId op(std::vector<StorageId> reads, std::vector<StorageId> writes) {
    return op(std::move(reads), std::move(writes), Settings());
  }
  OpId op(std::vector<StorageId> reads, std::vector<StorageId> writes, Settings settings) {
    std::vector<ValueId> inputs;
    for (const StorageId id : reads) {
      inputs.push_back(values_.at(id));
    }
    std::vector<ValueId> outputs;
    const OpId op = num_ops_++;
    for (const StorageId id : writes) {
      int32_t version = 0;
      if (values_.contains(id)) {
        recorder_.set_changed(values_[id]);
        version = ++versions_[id];
      } else {
        base_bytes_ += sizes_[id];
      }
      values_[id] = recorder_.add_value(id, 0, sizes_[id], version, op);
      outputs.push_back(values_[id]);
    }
    now_us_ += 10;
    recorder_.add_op(
        {.name = "aten::op",
         .signature = static_cast<uint64_t>(op) + 1,
         .duration_us = 10,
         .inputs = inputs,
         .outputs = outputs,
         .written = outputs,
         .is_replayable = settings.is_replayable},
        now_us_,
        base_bytes_,
        base_bytes_ + settings.workspace_bytes);
    return op;
  }
  OpTrace& opaque(StorageId id) {
    recorder_.set_opaque(id);
    return *this;
  }
  // Autograd saves it, and torchlms may move it.
  OpTrace& save(StorageId id) {
    if (!is_managed_[id]) {
      recorder_.set_managed(id);
      base_bytes_ -= sizes_[id];
      is_managed_[id] = true;
    }
    return event(EventKind::kPack, id);
  }
  // Autograd saves it, and nobody moves it.
  OpTrace& save_in_place(StorageId id) {
    return event(EventKind::kPack, id);
  }
  // The program drops it.
  OpTrace& drop(StorageId id) {
    if (is_managed_[id]) {
      return event(EventKind::kDead, id);
    }
    base_bytes_ -= sizes_[id];
    return *this;
  }
  OpTrace& end_forward() {
    recorder_.end_forward();
    return *this;
  }
  OpTrace& wait(double us) {
    now_us_ += us;
    return *this;
  }
  OpTrace& unpack(StorageId id) {
    return event(EventKind::kUnpack, id);
  }
  OpTrace& free(StorageId id) {
    return event(EventKind::kFree, id);
  }
  Trace finish() {
    return recorder_.finish();
  }

 private:
  OpTrace& event(EventKind kind, StorageId id) {
    recorder_.add_event(kind, id, now_us_, base_bytes_, base_bytes_);
    return *this;
  }

  Recorder recorder_;
  std::map<StorageId, Bytes> sizes_;
  std::map<StorageId, ValueId> values_; // the newest of each storage
  std::map<StorageId, int32_t> versions_;
  std::map<StorageId, bool> is_managed_;
  OpId num_ops_ = 0;
  double now_us_ = 0;
  Bytes base_bytes_ = 0;
};

// Layers that are saved and used in reverse; the ops take 10 us. The first may not run again.
inline Trace layers(int count, Bytes size) {
  OpTrace ops;
  std::vector<StorageId> ids;
  for (int i = 0; i < count; ++i) {
    ids.push_back(ops.storage(size));
    ops.op(i > 0 ? std::vector{ids[i - 1]} : std::vector<StorageId>(), {ids[i]}, {.is_replayable = i > 0});
    ops.save(ids[i]);
    if (i > 0) {
      ops.drop(ids[i - 1]);
    }
  }
  ops.drop(ids.back()).end_forward();
  for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
    ops.unpack(*id).wait(10).free(*id);
  }
  return ops.finish();
}

} // namespace torchlms
