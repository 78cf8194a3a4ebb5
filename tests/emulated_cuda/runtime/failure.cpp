// SPDX-License-Identifier: BSD-3-Clause
#include "failure.h"

#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>

#include "knobs.h"

namespace emulated_cuda {
namespace {

thread_local cudaError_t last = cudaSuccess;
std::atomic<cudaError_t> broken{cudaSuccess};

} // namespace

bool injected_failure(const char* function) {
  if (knobs().failures.empty())
    return false;
  static std::mutex mutex;
  static auto& calls = *new std::map<std::string, uint64_t>;
  static uint64_t version = 0;
  std::lock_guard lock(mutex);
  if (version != knobs().failures_version) {
    version = knobs().failures_version;
    calls.clear();
  }
  const uint64_t call = ++calls[function];
  for (const auto& failure : knobs().failures) {
    if (failure.function != function)
      continue;
    if (call == failure.first || (failure.lasting && call > failure.first)) {
      std::fprintf(
          stderr,
          "emulated_cuda: call %llu of %s fails as asked\n",
          static_cast<unsigned long long>(call),
          function);
      return true;
    }
  }
  return false;
}

cudaError_t failed(cudaError_t error) {
  if (error != cudaSuccess)
    last = error;
  return error;
}

cudaError_t last_error(bool clear) {
  const cudaError_t error = last;
  if (clear)
    last = cudaSuccess;
  return error;
}

void break_device(cudaError_t error) {
  broken = error;
}

cudaError_t device_error() {
  return failed(broken);
}

} // namespace emulated_cuda
