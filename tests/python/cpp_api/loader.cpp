// SPDX-License-Identifier: BSD-3-Clause
// loader PLUGIN BUDGET_BYTES FOLDER [late]: runs train_chain of the plugin; with "late", autograd is used before it
// is loaded. Prints what train_chain returns.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

int main(int argc, char** argv) {
  if (argc > 4) {
    at::arange(4, at::kFloat).requires_grad_().sum().backward();
  }
  void* plugin = dlopen(argv[1], RTLD_NOW);
  if (!plugin) {
    std::puts(dlerror());
    return 1;
  }
  using TrainChain = const char* (*)(int64_t, const char*);
  const auto train_chain = reinterpret_cast<TrainChain>(dlsym(plugin, "train_chain"));
  const char* answer = train_chain(std::atoll(argv[2]), argv[3]);
  std::puts(answer);
  return *answer ? 1 : 0;
}
