// SPDX-License-Identifier: BSD-3-Clause
// Entry points of the driver that are asked for through the runtime.
#include <cstdio>
#include <cstring>

#include "api.h"

namespace {

int not_supported() {
  return 801; // CUDA_ERROR_NOT_SUPPORTED
}

int no_expandable_segments() {
  std::fprintf(stderr, "emulated_cuda: expandable segments are not emulated\n");
  return not_supported();
}

} // namespace

EMULATED_API cudaError_t cudaGetDriverEntryPointByVersion(
    const char* symbol,
    void** function,
    unsigned,
    unsigned long long,
    cudaDriverEntryPointQueryResult* result) {
  const bool reserves = std::strcmp(symbol, "cuMemAddressReserve") == 0;
  *function = reinterpret_cast<void*>(reserves ? &no_expandable_segments : &not_supported);
  if (result != nullptr)
    *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
