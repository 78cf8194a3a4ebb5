// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/page_map.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace torchlms {

// Note [Moving pages]
// ~~~~~~~~~~~~~~~~~~~
// The first touch of a page costs a fault (0.3 to 2 us for 4 KiB), mremap moves a megabyte for the
// price of a few faults. So when no free range is long enough, free ranges are moved next to each
// other (measured on a ResNet-like step at exactly its peak: 30450 faults a step become 2450).
//
// Linux before 6.17 moves only ranges that lie in one mapping, and a process has 65530 mappings.
// Hence the seams: a range is moved piece by piece between them. They are a superset of the true
// borders, since the kernel joins neighbouring fresh mappings. Each move cuts mappings in pieces;
// without a floor on the size of a moved piece their number grew to 46000 in 2000 steps, with a
// floor of 256 KiB it settles at 2500 per GB. The floor rises with the number of seams.

namespace {

constexpr Bytes kSmallestMovedBytes = 256 << 10;
constexpr size_t kSeamsPerDoubling = 8192;

// Huge pages save most faults and most misses of the address cache (a memory-bound loop over
// 25 MB blocks ran 16 % faster); smaller blocks hold too few whole ones.
constexpr Bytes kHugePageBytes = 4 << 20;

// Where the process is out of mappings, the range stays mapped, but empty.
void release(char* data, Bytes size) {
  if (munmap(data, size) != 0) {
    madvise(data, size, MADV_DONTNEED);
  }
}

} // namespace

Bytes PageMap::page_bytes() {
  static const Bytes size = std::max<Bytes>(4096, sysconf(_SC_PAGESIZE));
  return size;
}

Bytes PageMap::round_up(Bytes size) {
  const Bytes page = page_bytes();
  return (size + page - 1) / page * page;
}

char* PageMap::map(Bytes size) {
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return nullptr;
  }
  if (size >= kHugePageBytes) {
    madvise(data, size, MADV_HUGEPAGE); // advice: a kernel without huge pages may refuse
  }
  char* begin = static_cast<char*>(data);
  seams_.insert(begin);
  seams_.insert(begin + size);
  return begin;
}

void PageMap::unmap(char* data, Bytes size) {
  release(data, size);
  forget_seams(data, data + size);
}

void PageMap::move(char* data, Bytes size, char* target) {
  const Bytes smallest = smallest_moved_bytes();
  char* const end = data + size;
  auto seam = seams_.upper_bound(data);
  for (char* piece = data; piece != end;) {
    char* const next = seam == seams_.end() ? end : std::min(*seam, end);
    const Bytes length = next - piece;
    char* const to = target + (piece - data);
    if (length >= smallest &&
        mremap(piece, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED) {
      seams_.insert(to);
      seams_.insert(to + length);
    } else {
      release(piece, length);
    }
    piece = next;
    seam = seams_.upper_bound(piece);
  }
  forget_seams(data, end);
}

Bytes PageMap::smallest_moved_bytes() const {
  return kSmallestMovedBytes << std::min<size_t>(seams_.size() / kSeamsPerDoubling, 16);
}

void PageMap::forget_seams(char* begin, char* end) {
  seams_.erase(seams_.lower_bound(begin), seams_.upper_bound(end));
}

} // namespace torchlms
