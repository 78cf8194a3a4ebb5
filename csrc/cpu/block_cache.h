// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <set>
#include <utility>

#include "cpu/page_map.h"
#include "trace/types.h"

namespace torchlms {

// Free mapped memory, kept for the next allocation because its pages are already there: ranges by
// size and by address, neighbours joined. Also makes new blocks, out of it or out of fresh pages.
//
// Not thread-safe. Owns the free ranges; blocks belong to the caller until put() takes them back.
// Failure: null when there is nothing that fits, or when the system has no memory.
// Sizes are multiples of PageMap::page_bytes(), except in give_back().
class BlockCache {
 public:
  // The best fitting free range, cut to size.
  void* take(Bytes size);
  // Fresh pages only.
  void* map(Bytes size);
  // A block made of free ranges moved next to each other, and of fresh pages where they are too few:
  // afterwards bytes() is smaller by `size`, or 0.
  void* gather(Bytes size);
  void put(void* data, Bytes size);

  // Returns at least that many free bytes to the system, or all there are.
  void give_back(Bytes bytes);
  Bytes bytes() const {
    return bytes_;
  }

 private:
  using Range = std::pair<Bytes, char*>;

  void add(char* data, Bytes size);
  void remove(char* data, Bytes size);
  // The smallest free range of at least `size` bytes, else the largest. Requires: one is free.
  Range best_fit(Bytes size) const;

  PageMap pages_;
  std::set<Range> by_size_;
  std::map<char*, Bytes> by_address_;
  Bytes bytes_ = 0;
};

} // namespace torchlms
