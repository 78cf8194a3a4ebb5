// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace emulated_cuda {

enum class Where { kPageable, kPinned, kDevice };

struct Place {
  Where where = Where::kPageable;
  int device = -1;
  char* begin = nullptr; // of the allocation
  uint64_t bytes = 0;
  char* view = nullptr; // where the device works on the address: a second mapping, or the address itself
};

// Device memory is host memory under a hard cap per device; null if the cap is reached.
char* allocate_device(int device, uint64_t bytes);
bool free_device(char* begin);
uint64_t device_bytes_used(int device);

// Page-aligned memory that counts as pinned; null if the cap is reached.
char* allocate_pinned(uint64_t bytes);
bool free_pinned(char* begin);
bool register_pinned(char* begin, uint64_t bytes);
bool unregister_pinned(char* begin);

Place place_of(const void* address);

} // namespace emulated_cuda
