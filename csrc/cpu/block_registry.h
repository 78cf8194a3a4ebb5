// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/util/flat_hash_map.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

#include "trace/types.h"

namespace torchlms {

// What is known of each block that the allocator handed out, by address. A table beside the blocks,
// not a header in front of them: blocks keep their alignment, and an unknown pointer is told apart.
// Serials rise from block to block.
//
// Thread-safe: shards of one mutex each. lock_all() and unlock_all() bracket a fork.
class BlockRegistry {
 public:
  enum class Origin : uint8_t { kFormerAllocator, kMapped };
  struct Block {
    Bytes counted_bytes;
    uint64_t serial;
    Origin origin;
  };

  void insert(const void* data, Bytes counted_bytes, Origin origin);
  std::optional<Block> erase(const void* data);
  std::optional<Block> find(const void* data) const;
  uint64_t next_serial() const {
    return next_serial_.load(std::memory_order_relaxed);
  }

  void lock_all();
  void unlock_all();

 private:
  static constexpr size_t kNumShards = 32;

  struct alignas(64) Shard {
    mutable std::mutex mutex;
    ska::flat_hash_map<const void*, Block> blocks; // guarded by mutex
  };

  Shard& shard_of(const void* data);
  const Shard& shard_of(const void* data) const;

  std::array<Shard, kNumShards> shards_;
  alignas(64) std::atomic<uint64_t> next_serial_{0};
};

} // namespace torchlms
