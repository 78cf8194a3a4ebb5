// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "site.h"

namespace emulated_cuda::race {

// One access, placed in time: the `count`-th piece of work of a stream.
struct Moment {
  uint64_t stream = 0;
  uint64_t count = 0;
  std::shared_ptr<const Site> site; // null: there was none
  bool before_reuse = false; // the caching allocator has given the block away since
};

enum class Content { kUnknown, kUnwritten, kWritten, kFreed };

struct Cell {
  const char* end = nullptr;
  Moment write;
  std::vector<Moment> reads; // one per stream, the latest
  Content content = Content::kUnknown;
};

// What is known of the bytes of the address space, in ranges of bytes with one history.
class Shadow {
 public:
  // Calls `visit` for the cells that make up the range; cells are split and made so that they do exactly.
  void each(const char* begin, uint64_t bytes, const std::function<void(const char*, Cell&)>& visit);
  // The range becomes one cell.
  void replace(const char* begin, uint64_t bytes, Cell cell);
  void forget(const char* begin, uint64_t bytes);

 private:
  void split_at(const char* address);

  std::map<const char*, Cell> cells_;
};

} // namespace emulated_cuda::race
