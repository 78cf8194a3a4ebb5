// SPDX-License-Identifier: BSD-3-Clause
#include "shadow.h"

namespace emulated_cuda::race {

void Shadow::split_at(const char* address) {
  auto next = cells_.lower_bound(address);
  if (next == cells_.begin())
    return;
  auto cell = std::prev(next);
  if (cell->second.end <= address)
    return;
  Cell tail = cell->second;
  cell->second.end = address;
  cells_.emplace_hint(next, address, std::move(tail));
}

void Shadow::each(const char* begin, uint64_t bytes, const std::function<void(const char*, Cell&)>& visit) {
  const char* end = begin + bytes;
  split_at(begin);
  split_at(end);
  auto next = cells_.lower_bound(begin);
  for (const char* at = begin; at < end;) {
    if (next == cells_.end() || next->first > at) {
      Cell gap;
      gap.end = next == cells_.end() || next->first > end ? end : next->first;
      next = cells_.emplace_hint(next, at, std::move(gap));
    }
    visit(at, next->second);
    at = next->second.end;
    ++next;
  }
}

void Shadow::forget(const char* begin, uint64_t bytes) {
  split_at(begin);
  split_at(begin + bytes);
  cells_.erase(cells_.lower_bound(begin), cells_.lower_bound(begin + bytes));
}

void Shadow::replace(const char* begin, uint64_t bytes, Cell cell) {
  forget(begin, bytes);
  cell.end = begin + bytes;
  cells_[begin] = std::move(cell);
}

} // namespace emulated_cuda::race
