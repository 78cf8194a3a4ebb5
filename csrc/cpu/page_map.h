// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <set>

#include "trace/types.h"

namespace torchlms {

// Anonymous private memory taken from the system in whole pages, given back in any ranges of pages
// (they may span several mappings), or moved to another address without being touched.
//
// Not thread-safe. Owns nothing: what map() returned is mapped until unmap() or move() took it.
// Failure: map() returns null; the others cannot fail, see there. See Note [Moving pages].
class PageMap {
 public:
  static Bytes page_bytes();
  static Bytes round_up(Bytes size);

  // Sizes here are multiples of page_bytes(). The memory reads as zero.
  char* map(Bytes size);
  // The physical memory is free afterwards in any case; where the system is out of mappings and
  // cannot cut one in two, only the address range is lost.
  void unmap(char* data, Bytes size);
  // Moves [data, data + size) over the mapped range at `target`. Parts that are not worth a
  // system call, or that the system refuses to move, leave fresh pages at the target instead.
  void move(char* data, Bytes size, char* target);

 private:
  Bytes smallest_moved_bytes() const;
  void forget_seams(char* begin, char* end);

  // Addresses where one mapping may end and another begin.
  std::set<char*> seams_;
};

} // namespace torchlms
