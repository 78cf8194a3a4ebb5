// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "trace/types.h"

namespace torchlms {

// Small integers grouped by event: one singly linked list per event, threaded through two flat arrays.
// An item is in at most one list. Thread-safety: none.
class EventLists {
 public:
  EventLists(size_t num_events, size_t num_items) : first_(num_events, kNone), next_(num_items, kNone) {}

  void clear() {
    std::fill(first_.begin(), first_.end(), kNone);
  }
  void clear(EventId event) {
    first_[event] = kNone;
  }
  void push_front(EventId event, int32_t item) {
    next_[item] = first_[event];
    first_[event] = item;
  }
  // kNone ends a list.
  int32_t first(EventId event) const {
    return first_[event];
  }
  int32_t next(int32_t item) const {
    return next_[item];
  }

 private:
  std::vector<int32_t> first_;
  std::vector<int32_t> next_;
};

} // namespace torchlms
