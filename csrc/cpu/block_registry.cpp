// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/block_registry.h"

namespace torchlms {

namespace {

// Blocks are 64-byte aligned and large ones 4096: neither set of low bits may decide alone.
size_t mix(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return (address >> 6) ^ (address >> 12) ^ (address >> 20);
}

} // namespace

void BlockRegistry::insert(const void* data, Bytes counted_bytes, Origin origin) {
  const uint64_t serial = next_serial_.fetch_add(1, std::memory_order_relaxed);
  Shard& shard = shard_of(data);
  std::lock_guard<std::mutex> lock(shard.mutex);
  shard.blocks.emplace(data, Block{counted_bytes, serial, origin});
}

std::optional<BlockRegistry::Block> BlockRegistry::erase(const void* data) {
  Shard& shard = shard_of(data);
  std::lock_guard<std::mutex> lock(shard.mutex);
  const auto entry = shard.blocks.find(data);
  if (entry == shard.blocks.end()) {
    return std::nullopt;
  }
  const Block block = entry->second;
  shard.blocks.erase(entry);
  return block;
}

std::optional<BlockRegistry::Block> BlockRegistry::find(const void* data) const {
  const Shard& shard = shard_of(data);
  std::lock_guard<std::mutex> lock(shard.mutex);
  const auto entry = shard.blocks.find(data);
  return entry == shard.blocks.end() ? std::nullopt : std::optional<Block>(entry->second);
}

void BlockRegistry::lock_all() {
  for (Shard& shard : shards_) {
    shard.mutex.lock();
  }
}

void BlockRegistry::unlock_all() {
  for (Shard& shard : shards_) {
    shard.mutex.unlock();
  }
}

BlockRegistry::Shard& BlockRegistry::shard_of(const void* data) {
  return shards_[mix(data) % kNumShards];
}

const BlockRegistry::Shard& BlockRegistry::shard_of(const void* data) const {
  return shards_[mix(data) % kNumShards];
}

} // namespace torchlms
