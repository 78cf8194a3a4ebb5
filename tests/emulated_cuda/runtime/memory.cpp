// SPDX-License-Identifier: BSD-3-Clause
#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>

#include "counters.h"
#include "knobs.h"
#include "race/detector.h"

namespace emulated_cuda {
namespace {

struct Allocation {
  uint64_t bytes = 0;
  int device = -1; // -1: pinned
  bool mapped = false; // by us
  char* view = nullptr; // the second mapping of guarded pinned memory
};

std::mutex mutex;

std::map<char*, Allocation>& allocations() {
  static auto& all = *new std::map<char*, Allocation>;
  return all;
}

char* map_pages(uint64_t bytes, int file = -1) {
  const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  return pages == MAP_FAILED ? nullptr : static_cast<char*>(pages);
}

// Two mappings of the same memory.
bool map_twice(uint64_t bytes, char*& begin, char*& view) {
  const int file = memfd_create("emulated_cuda_pinned", 0);
  if (file < 0)
    return false;
  const bool sized = ftruncate(file, static_cast<off_t>(bytes)) == 0;
  begin = sized ? map_pages(bytes, file) : nullptr;
  view = begin != nullptr ? map_pages(bytes, file) : nullptr;
  close(file);
  return view != nullptr;
}

uint64_t used_on(int device) {
  uint64_t used = 0;
  for (const auto& [begin, allocation] : allocations())
    if (allocation.device == device)
      used += allocation.bytes;
  return used;
}

char* allocate(int device, uint64_t bytes, uint64_t cap) {
  const uint64_t mapped = bytes == 0 ? 1 : bytes;
  std::lock_guard lock(mutex);
  if (bytes > cap || used_on(device) > cap - bytes)
    return nullptr;
  char* begin = nullptr;
  char* view = nullptr;
  if (device < 0 && knobs().race)
    map_twice(mapped, begin, view);
  else
    begin = map_pages(mapped);
  if (begin == nullptr)
    return nullptr;
  std::memset(begin, 0xff, bytes); // NaNs, so that a use of what was never written shows
  allocations()[begin] = {bytes, device, true, view};
  race::memory_changed(begin, bytes);
  if (view != nullptr)
    race::guard_pinned(begin, bytes);
  return begin;
}

bool release(char* begin, bool pinned, bool mapped, uint64_t& bytes) {
  std::lock_guard lock(mutex);
  const auto found = allocations().find(begin);
  if (found == allocations().end() || (found->second.device < 0) != pinned || found->second.mapped != mapped)
    return false;
  bytes = found->second.bytes;
  race::memory_changed(begin, bytes);
  if (found->second.view != nullptr) {
    race::unguard_pinned(begin);
    munmap(found->second.view, bytes == 0 ? 1 : bytes);
  }
  if (mapped)
    munmap(begin, bytes == 0 ? 1 : bytes);
  allocations().erase(found);
  return true;
}

} // namespace

char* allocate_device(int device, uint64_t bytes) {
  char* begin = allocate(device, bytes, knobs().device_bytes);
  if (begin != nullptr) {
    counters().device_allocations++;
    grow(counters().device_bytes, counters().device_peak_bytes, bytes);
  }
  return begin;
}

bool free_device(char* begin) {
  uint64_t bytes = 0;
  if (!release(begin, false, true, bytes))
    return false;
  counters().device_bytes -= bytes;
  return true;
}

uint64_t device_bytes_used(int device) {
  std::lock_guard lock(mutex);
  return used_on(device);
}

char* allocate_pinned(uint64_t bytes) {
  char* begin = allocate(-1, bytes, knobs().pinned_bytes);
  if (begin != nullptr) {
    counters().pinned_allocations++;
    grow(counters().pinned_bytes, counters().pinned_peak_bytes, bytes);
  }
  return begin;
}

bool free_pinned(char* begin) {
  uint64_t bytes = 0;
  if (!release(begin, true, true, bytes))
    return false;
  counters().pinned_bytes -= bytes;
  return true;
}

bool register_pinned(char* begin, uint64_t bytes) {
  std::lock_guard lock(mutex);
  const uint64_t cap = knobs().pinned_bytes;
  if (bytes > cap || used_on(-1) > cap - bytes ||
      !allocations().try_emplace(begin, Allocation{bytes, -1, false, nullptr}).second)
    return false;
  counters().pinned_allocations++;
  grow(counters().pinned_bytes, counters().pinned_peak_bytes, bytes);
  return true;
}

bool unregister_pinned(char* begin) {
  uint64_t bytes = 0;
  if (!release(begin, true, false, bytes))
    return false;
  counters().pinned_bytes -= bytes;
  return true;
}

Place place_of(const void* address) {
  char* at = static_cast<char*>(const_cast<void*>(address));
  const Place pageable{Where::kPageable, -1, nullptr, 0, at};
  std::lock_guard lock(mutex);
  auto next = allocations().upper_bound(at);
  if (next == allocations().begin())
    return pageable;
  const auto& [begin, allocation] = *--next;
  if (at >= begin + allocation.bytes)
    return pageable;
  char* view = allocation.view == nullptr ? at : allocation.view + (at - begin);
  return {
      allocation.device < 0 ? Where::kPinned : Where::kDevice,
      allocation.device,
      begin,
      allocation.bytes,
      view};
}

} // namespace emulated_cuda
