// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "swap/device.h"
#include "swap/held_counter.h"

namespace torchlms {

// What PyTorch's allocator has handed out on one device, followed by its own trace entries, and
// the budget there. note() runs with that allocator's lock held and calls nobody.
//
// Thread-safe; never destroyed.
class DeviceMemory {
 public:
  using TraceEntry = c10::CachingDeviceAllocator::TraceEntry;
  using SegmentInfo = c10::CachingDeviceAllocator::SegmentInfo;
  using Streams = c10::SmallVector<cudaStream_t, 2>;

  // What the allocator holds for `size` bytes.
  static Bytes rounded(size_t size);

  // Something happened on this device.
  void note(const TraceEntry& entry);
  // What it held before note() was called for the first time.
  void note_older(const SegmentInfo& segment);

  Device::Block block_of(const void* data) const;
  uint64_t next_serial() const;
  // The streams that work on the block: first the one it was allocated for. Empty when it is unknown.
  Streams streams_of(const void* data) const;
  void add_stream(const void* data, cudaStream_t stream);

  HeldCounter& counter() {
    return counter_;
  }
  Bytes held_bytes() const {
    return counter_.held();
  }

  struct Policy {
    ReclaimFn reclaim;
    DescribeFn describe;
  };
  // An allocation failed although this much of the budget was neither held nor asked for.
  void note_waste(Bytes waste);
  Bytes wasted_bytes() const {
    return wasted_.load(std::memory_order_relaxed);
  }
  // 0: none.
  Bytes budget_bytes() const {
    return budget_.load(std::memory_order_relaxed);
  }
  std::shared_ptr<const Policy> policy() const;
  void set_budget(Bytes budget, std::shared_ptr<const Policy> policy);

 private:
  struct Block {
    Bytes bytes;
    uint64_t serial;
    Streams streams;
  };
  void insert(const void* data, Bytes size, cudaStream_t stream);

  HeldCounter counter_;
  std::atomic<Bytes> budget_{0};
  std::atomic<Bytes> wasted_{0};

  mutable std::mutex mutex_; // taken under the allocator's own lock: nothing else is taken under it
  // Guarded by mutex_.
  ska::flat_hash_map<const void*, Block> blocks_;
  uint64_t next_serial_ = 0;
  std::shared_ptr<const Policy> policy_;
};

} // namespace torchlms
