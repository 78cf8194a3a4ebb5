// SPDX-License-Identifier: BSD-3-Clause
#include "page_guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace emulated_cuda::race {
namespace {

uint64_t page_bytes() {
  static const auto bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

char* page_of(char* address) {
  return reinterpret_cast<char*>(reinterpret_cast<uint64_t>(address) / page_bytes() * page_bytes());
}

} // namespace

void PageGuard::add(char* begin, uint64_t bytes) {
  blocks_[begin] = {begin + bytes, {}};
}

void PageGuard::remove(const char* begin) {
  blocks_.erase(const_cast<char*>(begin));
  busy_.erase(const_cast<char*>(begin));
}

PageGuard::Blocks::iterator PageGuard::block_of(const char* address) {
  auto next = blocks_.upper_bound(const_cast<char*>(address));
  if (next == blocks_.begin())
    return blocks_.end();
  --next;
  return address < next->second.end ? next : blocks_.end();
}

void PageGuard::protect(const Block& block, char* begin, char* end) const {
  const auto wanted = [&](char* page) {
    int protection = PROT_READ | PROT_WRITE;
    for (const auto& pending : block.pending)
      if (pending.begin < page + page_bytes() && pending.end > page)
        protection &= pending.write ? PROT_NONE : PROT_READ;
    return protection;
  };
  char* page = page_of(begin);
  while (page < end) {
    const int protection = wanted(page);
    char* run_end = page + page_bytes();
    while (run_end < end && wanted(run_end) == protection)
      run_end += page_bytes();
    mprotect(page, static_cast<size_t>(run_end - page), protection);
    page = run_end;
  }
}

void PageGuard::device_access(const Access& access, const Moment& moment) {
  const auto found = block_of(access.begin);
  if (found == blocks_.end())
    return;
  char* begin = const_cast<char*>(access.begin);
  char* end = begin + access.bytes;
  busy_.insert(found->first);
  for (auto& p : found->second.pending)
    if (p.begin == begin && p.end == end && p.write == access.write && p.moment.stream == moment.stream) {
      p.moment = moment; // a later copy of the same kind: waiting for it is waiting for both
      return;
    }
  found->second.pending.push_back({begin, end, access.write, moment});
  protect(found->second, begin, end);
}

void PageGuard::host_knows(const VectorClock& clock) {
  for (auto busy = busy_.begin(); busy != busy_.end();) {
    auto& block = blocks_[*busy];
    auto& pending = block.pending;
    const auto done = std::stable_partition(pending.begin(), pending.end(), [&](const Pending& p) {
      return at(clock, p.moment.stream) < p.moment.count;
    });
    const std::vector<Pending> opened(done, pending.end());
    pending.erase(done, pending.end());
    for (const auto& p : opened)
      protect(block, p.begin, p.end);
    busy = pending.empty() ? busy_.erase(busy) : std::next(busy);
  }
}

std::optional<Moment> PageGuard::host_access(char* address, bool write) {
  const auto found = block_of(address);
  if (found == blocks_.end())
    return std::nullopt;
  auto& pending = found->second.pending;
  std::optional<Moment> early;
  char* page = page_of(address);
  for (const auto& p : pending)
    if (p.begin <= address && address < p.end && (write || p.write))
      early = p.moment;
  const auto opened = std::stable_partition(pending.begin(), pending.end(), [&](const Pending& p) {
    return p.begin >= page + page_bytes() || p.end <= page;
  });
  const std::vector<Pending> gone(opened, pending.end());
  pending.erase(opened, pending.end());
  for (const auto& p : gone)
    protect(found->second, p.begin, p.end);
  return early;
}

bool PageGuard::covers(const char* address) const {
  return const_cast<PageGuard*>(this)->block_of(address) != blocks_.end();
}

} // namespace emulated_cuda::race
