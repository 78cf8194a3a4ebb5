// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/device_memory.h"

#include <algorithm>
#include <utility>

namespace torchlms {

Bytes DeviceMemory::rounded(size_t size) {
  constexpr size_t kGranularity = 512;
  return static_cast<Bytes>(std::max<size_t>(1, (size + kGranularity - 1) / kGranularity) * kGranularity);
}

void DeviceMemory::note(const TraceEntry& entry) {
  const void* data = reinterpret_cast<const void*>(entry.addr_);
  switch (entry.action_) {
    case TraceEntry::ALLOC:
      insert(data, rounded(entry.size_), static_cast<cudaStream_t>(entry.stream_));
      break;
    case TraceEntry::FREE_REQUESTED: {
      const std::lock_guard lock(mutex_);
      const auto block = blocks_.find(data);
      if (block != blocks_.end()) {
        counter_.subtract(block->second.bytes);
        blocks_.erase(block);
      }
      break;
    }
    default:
      break;
  }
}

void DeviceMemory::note_older(const SegmentInfo& segment) {
  size_t address = segment.address;
  for (const auto& block : segment.blocks) {
    if (block.allocated) {
      insert(
          reinterpret_cast<const void*>(address),
          static_cast<Bytes>(block.size),
          static_cast<cudaStream_t>(segment.stream));
    }
    address += block.size;
  }
}

void DeviceMemory::insert(const void* data, Bytes size, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  const bool is_new = blocks_.emplace(data, Block{size, next_serial_++, {stream}}).second;
  if (is_new) {
    counter_.add(size);
  }
}

Device::Block DeviceMemory::block_of(const void* data) const {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(data);
  return block == blocks_.end() ? Device::Block{} : Device::Block{block->second.bytes, block->second.serial};
}

uint64_t DeviceMemory::next_serial() const {
  const std::lock_guard lock(mutex_);
  return next_serial_;
}

DeviceMemory::Streams DeviceMemory::streams_of(const void* data) const {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(data);
  return block == blocks_.end() ? Streams{} : block->second.streams;
}

void DeviceMemory::add_stream(const void* data, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(data);
  if (block != blocks_.end() &&
      std::find(block->second.streams.begin(), block->second.streams.end(), stream) ==
          block->second.streams.end()) {
    block->second.streams.push_back(stream);
  }
}

void DeviceMemory::note_waste(Bytes waste) {
  Bytes seen = wasted_.load(std::memory_order_relaxed);
  while (seen < waste && !wasted_.compare_exchange_weak(seen, waste, std::memory_order_relaxed)) {
  }
}

std::shared_ptr<const DeviceMemory::Policy> DeviceMemory::policy() const {
  const std::lock_guard lock(mutex_);
  return policy_;
}

void DeviceMemory::set_budget(Bytes budget, std::shared_ptr<const Policy> policy) {
  // The former policy may own anything: it is destroyed after the lock.
  const std::lock_guard lock(mutex_);
  policy_.swap(policy);
  budget_ = budget;
}

} // namespace torchlms
