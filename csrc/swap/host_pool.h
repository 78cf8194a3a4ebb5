// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "export.h"
#include "swap/device.h"

namespace torchlms {

class HostPool;

// A block of a HostPool. Move-only; gives itself back. Must not outlive its pool.
class HostBlock {
 public:
  HostBlock() = default;
  HostBlock(HostPool* pool, char* data, Bytes size) : pool_(pool), data_(data), size_(size) {}
  HostBlock(HostBlock&& other) noexcept;
  HostBlock& operator=(HostBlock&& other) noexcept;
  HostBlock(const HostBlock&) = delete;
  HostBlock& operator=(const HostBlock&) = delete;
  ~HostBlock();

  explicit operator bool() const {
    return data_ != nullptr;
  }
  char* data() const {
    return data_;
  }

 private:
  HostPool* pool_ = nullptr;
  char* data_ = nullptr;
  Bytes size_ = 0;
};

// The host tier: blocks of exactly the size that was asked for (page-locking costs milliseconds and PyTorch's own
// pool rounds up to powers of two), kept for the next step when they are given back, so that a steady
// state allocates nothing. Page-locked as long as the device has such memory to give, then pageable.
//
// Thread-safe. Owns its memory. Blocks in use and kept together never exceed the budget.
class TORCHLMS_EXPORT HostPool {
 public:
  static constexpr Bytes kAlignment = 4096;

  // budget_bytes: 0 for no host tier.
  HostPool(Device& device, Bytes budget_bytes, bool pins);
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // An empty block when the budget, or the system, has no room.
  HostBlock try_allocate(Bytes size);

  Bytes used_bytes() const;
  Bytes peak_bytes() const; // highest used_bytes so far
  Bytes budget_bytes() const {
    return budget_bytes_;
  }
  bool pins() const {
    return pins_;
  }
  int64_t num_allocations() const; // from the system, so far
  bool was_full() const; // a block was refused
  bool is_pageable() const; // some block is not page-locked although it should be

 private:
  friend class HostBlock;
  void give_back(char* data, Bytes size) noexcept;
  char* take_kept(Bytes size);
  char* make(Bytes size);
  void destroy(char* data);
  void destroy_kept(Bytes enough);

  Device& device_;
  const Bytes budget_bytes_;
  const bool pins_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::map<char*, bool> is_pinned_; // all blocks
  std::map<Bytes, std::vector<char*>> kept_; // by size, not in use
  Bytes kept_bytes_ = 0;
  Bytes used_bytes_ = 0;
  Bytes peak_bytes_ = 0;
  int64_t num_allocations_ = 0;
  bool was_full_ = false;
  bool is_pageable_ = false;
};

} // namespace torchlms
