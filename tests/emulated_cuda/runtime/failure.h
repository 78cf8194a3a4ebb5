// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cuda_runtime_api.h>

namespace emulated_cuda {

// True if this call of the function is one that the knobs want to fail. Counts the call.
bool injected_failure(const char* function);

// Remembers an error for cudaGetLastError on this thread and passes it on.
cudaError_t failed(cudaError_t error);
cudaError_t last_error(bool clear);

// An error of queued work, which every later synchronisation reports, as on a real device.
void break_device(cudaError_t error);
cudaError_t device_error();

} // namespace emulated_cuda
