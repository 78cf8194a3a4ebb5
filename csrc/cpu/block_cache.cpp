// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/block_cache.h"

#include <algorithm>
#include <iterator>

namespace torchlms {

namespace {

// A series of small tensors must not cost one system call each.
constexpr Bytes kLeastGivenBack = 256 << 10;

} // namespace

void* BlockCache::take(Bytes size) {
  if (by_size_.empty()) {
    return nullptr;
  }
  const auto [free_bytes, data] = best_fit(size);
  if (free_bytes < size) {
    return nullptr;
  }
  remove(data, free_bytes);
  if (free_bytes > size) {
    add(data + size, free_bytes - size);
  }
  return data;
}

void* BlockCache::map(Bytes size) {
  return pages_.map(size);
}

void* BlockCache::gather(Bytes size) {
  char* block = pages_.map(size);
  if (block == nullptr) {
    // Under a limit on address space there may be no room for both.
    give_back(size);
    return pages_.map(size);
  }
  for (Bytes filled = 0; filled < size && !by_size_.empty();) {
    const auto [free_bytes, data] = best_fit(size - filled);
    const Bytes moved = std::min(free_bytes, size - filled);
    remove(data, free_bytes);
    if (free_bytes > moved) {
      add(data + moved, free_bytes - moved);
    }
    pages_.move(data, moved, block + filled);
    filled += moved;
  }
  return block;
}

void BlockCache::put(void* data, Bytes size) {
  char* begin = static_cast<char*>(data);
  auto next = by_address_.lower_bound(begin);
  if (next != by_address_.end() && next->first == begin + size) {
    const auto [after, after_bytes] = *next;
    size += after_bytes;
    remove(after, after_bytes);
    next = by_address_.lower_bound(begin);
  }
  if (next != by_address_.begin()) {
    const auto [before, before_bytes] = *std::prev(next);
    if (before + before_bytes == begin) {
      begin = before;
      size += before_bytes;
      remove(before, before_bytes);
    }
  }
  add(begin, size);
}

void BlockCache::give_back(Bytes bytes) {
  Bytes missing = PageMap::round_up(std::min(std::max(bytes, kLeastGivenBack), bytes_));
  while (missing > 0) {
    const auto [free_bytes, data] = best_fit(missing);
    const Bytes given = std::min(free_bytes, missing);
    remove(data, free_bytes);
    if (free_bytes > given) {
      add(data, free_bytes - given);
    }
    pages_.unmap(data + (free_bytes - given), given);
    missing -= given;
  }
}

void BlockCache::add(char* data, Bytes size) {
  by_size_.emplace(size, data);
  by_address_.emplace(data, size);
  bytes_ += size;
}

void BlockCache::remove(char* data, Bytes size) {
  by_size_.erase({size, data});
  by_address_.erase(data);
  bytes_ -= size;
}

BlockCache::Range BlockCache::best_fit(Bytes size) const {
  const auto fit = by_size_.lower_bound({size, nullptr});
  return fit != by_size_.end() ? *fit : *std::prev(fit);
}

} // namespace torchlms
