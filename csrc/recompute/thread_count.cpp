// SPDX-License-Identifier: BSD-3-Clause
#include "recompute/thread_count.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace torchlms {

// Note [Thread counts]
//
// A new thread has OpenMP's default number of threads until the first kernel of PyTorch's own that is large
// enough to split gives it the process's number (at::internal::lazy_init_num_threads). oneDNN and MKL ask
// OpenMP and so see either, and their bits depend on it. at::get_num_threads() would give the thread its
// number earlier than it gets it in plain PyTorch, and that cannot be taken back. So we ask OpenMP too, the
// runtime that libtorch_cpu itself is linked with.

namespace {

struct Runtime {
  int (*get)() = &at::get_num_threads;
  void (*set)(int) = &at::set_num_threads;
  void (*set_mkl)(int) = nullptr;
};

template <class Function>
Function find(void* library, const char* name) {
  return library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
}

Runtime find_runtime() {
  Runtime runtime;
#if AT_PARALLEL_OPENMP
  Dl_info torch;
  if (dladdr(reinterpret_cast<const void*>(&at::init_num_threads), &torch) == 0) {
    return runtime;
  }
  void* library = dlopen(torch.dli_fname, RTLD_LAZY | RTLD_NOLOAD); // stays open: it is never unloaded
  const auto get = find<int (*)()>(library, "omp_get_max_threads");
  const auto set = find<void (*)(int)>(library, "omp_set_num_threads");
  if (get && set) {
    runtime = {get, set, find<void (*)(int)>(library, "MKL_Set_Num_Threads_Local")};
  }
#endif
  return runtime;
}

const Runtime& runtime() {
  static const Runtime found = find_runtime();
  return found;
}

} // namespace

int thread_count() {
  return runtime().get();
}

void set_thread_count(int count) {
  runtime().set(count);
  if (runtime().set_mkl) {
    runtime().set_mkl(count);
  }
}

} // namespace torchlms
