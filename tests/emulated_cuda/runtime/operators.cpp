// SPDX-License-Identifier: BSD-3-Clause
#include "operators.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "stream.h"

namespace emulated_cuda {
namespace {

void* library = nullptr;

// Work may use what the process is about to destroy.
void finish_all_work() {
  synchronize_device(-1);
}

} // namespace

void load_operators() {
  static std::mutex mutex;
  static bool loading = false; // loading asks for devices itself
  static thread_local bool inside = false;
  if (inside)
    return;
  std::lock_guard lock(mutex);
  const char* path = std::getenv("EMULATED_CUDA_OPERATORS");
  if (loading || path == nullptr || dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY) == nullptr)
    return;
  loading = inside = true;
  library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  inside = false;
  if (library == nullptr) {
    std::fprintf(stderr, "emulated_cuda: %s\n", dlerror());
    std::abort();
  }
  std::atexit(finish_all_work);
}

void observe_caching_allocator() {
  static const auto observe = library == nullptr
      ? nullptr
      : reinterpret_cast<void (*)()>(dlsym(library, "emulated_cuda_observe_allocator"));
  if (observe != nullptr)
    observe();
}

} // namespace emulated_cuda
