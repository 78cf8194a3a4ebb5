// SPDX-License-Identifier: BSD-3-Clause
#include "memory.h"

#include <sys/mman.h>

#include <map>
#include <mutex>

#include "counters.h"
#include "knobs.h"

namespace emulated_cuda {
namespace {

struct Allocation {
  uint64_t bytes = 0;
  int device = -1; // -1: pinned
  bool mapped = false; // by us
};

std::mutex mutex;

std::map<char*, Allocation>& allocations() {
  static auto& all = *new std::map<char*, Allocation>;
  return all;
}

char* map_pages(uint64_t bytes) {
  void* pages =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return pages == MAP_FAILED ? nullptr : static_cast<char*>(pages);
}

uint64_t used_on(int device) {
  uint64_t used = 0;
  for (const auto& [begin, allocation] : allocations())
    if (allocation.device == device)
      used += allocation.bytes;
  return used;
}

char* allocate(int device, uint64_t bytes, uint64_t cap) {
  std::lock_guard lock(mutex);
  if (bytes > cap || used_on(device) > cap - bytes)
    return nullptr;
  char* begin = map_pages(bytes == 0 ? 1 : bytes);
  if (begin != nullptr)
    allocations()[begin] = {bytes, device, true};
  return begin;
}

bool release(char* begin, bool pinned, bool mapped, uint64_t& bytes) {
  std::lock_guard lock(mutex);
  const auto found = allocations().find(begin);
  if (found == allocations().end() || (found->second.device < 0) != pinned || found->second.mapped != mapped)
    return false;
  bytes = found->second.bytes;
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
      !allocations().try_emplace(begin, Allocation{bytes, -1, false}).second)
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
  std::lock_guard lock(mutex);
  auto next = allocations().upper_bound(at);
  if (next == allocations().begin())
    return {};
  const auto& [begin, allocation] = *--next;
  if (at >= begin + allocation.bytes)
    return {};
  return {
      allocation.device < 0 ? Where::kPinned : Where::kDevice, allocation.device, begin, allocation.bytes};
}

} // namespace emulated_cuda
