// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "trace/trace.h"

namespace torchlms {

// What rebuilds one storage: ops of the forward pass, run again in recorded order. An op may also make
// storages that are none of these: its copies of them are dropped at once. An in-place op may write a
// storage that is none of these (running statistics): it gets a scratch copy.
struct Region {
  static constexpr size_t kMaxOps = 64;
  static constexpr Bytes kSmallBytes = 4096; // a record of an op holds an argument of this size

  StorageId storage = kNone;
  std::vector<OpId> ops; // ascending; the last one is the last to write the storage
  std::vector<StorageId> leaves; // what they read and do not make, ascending
  std::vector<StorageId> temporaries; // made on the way and freed, ascending
  double replay_us = 0; // sum of the ops' durations
  Bytes extra_bytes = 0; // highest bytes held during the replay above those before it, the storage included
};

// The regions of a trace. Immutable, hence thread-safe; refers to nothing after construction.
class Regions {
 public:
  explicit Regions(const Trace& trace);

  // Null: cannot be rebuilt.
  const Region* of(StorageId storage) const {
    return index_[storage] == kNone ? nullptr : &regions_[index_[storage]];
  }
  // Of all that can be rebuilt, in order of storage.
  const std::vector<Region>& all() const {
    return regions_;
  }

 private:
  std::vector<Region> regions_;
  std::vector<int32_t> index_; // by StorageId
};

} // namespace torchlms
