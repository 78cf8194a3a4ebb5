// SPDX-License-Identifier: BSD-3-Clause
#include "swap/host_pool.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

namespace torchlms {

HostBlock::HostBlock(HostBlock&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

HostBlock& HostBlock::operator=(HostBlock&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

HostBlock::~HostBlock() {
  if (data_) {
    pool_->give_back(data_, size_);
  }
}

HostPool::HostPool(Device& device, Bytes budget_bytes, bool pins)
    : device_(device), budget_bytes_(budget_bytes), pins_(pins) {}

HostPool::~HostPool() {
  for (const auto& [size, blocks] : kept_) {
    std::for_each(blocks.begin(), blocks.end(), [this](char* data) { destroy(data); });
  }
}

HostBlock HostPool::try_allocate(Bytes size) {
  const Bytes rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  const std::lock_guard lock(mutex_);
  if (rounded == 0 || used_bytes_ + rounded > budget_bytes_) {
    was_full_ = was_full_ || rounded > 0;
    return {};
  }
  char* data = take_kept(rounded);
  if (!data) {
    destroy_kept(used_bytes_ + kept_bytes_ + rounded - budget_bytes_);
    data = make(rounded);
  }
  if (!data) {
    return {};
  }
  used_bytes_ += rounded;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return {this, data, rounded};
}

// Requires: mutex_ held.
char* HostPool::take_kept(Bytes size) {
  const auto list = kept_.find(size);
  if (list == kept_.end()) {
    return nullptr;
  }
  char* data = list->second.back();
  list->second.pop_back();
  if (list->second.empty()) {
    kept_.erase(list);
  }
  kept_bytes_ -= size;
  return data;
}

// Requires: mutex_ held.
char* HostPool::make(Bytes size) {
  auto* data = pins_ ? static_cast<char*>(device_.allocate_pinned(size)) : nullptr;
  const bool is_pinned = data != nullptr;
  if (!data) {
    is_pageable_ = is_pageable_ || pins_;
    data = static_cast<char*>(std::aligned_alloc(kAlignment, static_cast<size_t>(size)));
  }
  if (data) {
    is_pinned_.emplace(data, is_pinned);
    ++num_allocations_;
  }
  return data;
}

// Requires: mutex_ held, or nobody else knows the pool.
void HostPool::destroy(char* data) {
  const auto block = is_pinned_.find(data);
  if (block->second) {
    device_.free_pinned(data);
  } else {
    std::free(data);
  }
  is_pinned_.erase(block);
}

// The largest first. Requires: mutex_ held.
void HostPool::destroy_kept(Bytes enough) {
  while (enough > 0 && !kept_.empty()) {
    const auto largest = std::prev(kept_.end());
    const Bytes freed = largest->first;
    destroy(take_kept(freed));
    enough -= freed;
  }
}

void HostPool::give_back(char* data, Bytes size) noexcept {
  const std::lock_guard lock(mutex_);
  kept_[size].push_back(data);
  kept_bytes_ += size;
  used_bytes_ -= size;
}

Bytes HostPool::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

Bytes HostPool::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_bytes_;
}

int64_t HostPool::num_allocations() const {
  const std::lock_guard lock(mutex_);
  return num_allocations_;
}

bool HostPool::was_full() const {
  const std::lock_guard lock(mutex_);
  return was_full_;
}

bool HostPool::is_pageable() const {
  const std::lock_guard lock(mutex_);
  return is_pageable_;
}

} // namespace torchlms
