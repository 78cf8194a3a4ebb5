// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cuda_runtime_api.h>

#include "failure.h"

#define EMULATED_API extern "C" __attribute__((visibility("default")))

// The entry points return through these, so that cudaGetLastError and injected failures see every call.
#define FAIL_AS_ASKED(error)                     \
  if (emulated_cuda::injected_failure(__func__)) \
  return emulated_cuda::failed(error)
#define REQUIRE(condition, error) \
  if (!(condition))               \
  return emulated_cuda::failed(error)
