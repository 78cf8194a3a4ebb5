// SPDX-License-Identifier: BSD-3-Clause
// The signal behind the page guard. Python's faulthandler and others want the same signal: what they ask
// for is kept, and called for faults that are none of ours.
#include <dlfcn.h>
#include <signal.h>
#include <ucontext.h>

#include "page_guard.h"

namespace emulated_cuda::race {
namespace {

using SigAction = int (*)(int, const struct sigaction*, struct sigaction*);

bool (*touched_)(char*, bool) = nullptr;
struct sigaction others = {};

SigAction real_sigaction() {
  static const auto real = reinterpret_cast<SigAction>(dlsym(RTLD_NEXT, "sigaction"));
  return real;
}

bool was_write(const void* context) {
#if defined(__x86_64__)
  return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
  return context != nullptr;
#endif
}

void handle(int signal, siginfo_t* info, void* context) {
  if (touched_(static_cast<char*>(info->si_addr), was_write(context)))
    return;
  if ((others.sa_flags & SA_SIGINFO) != 0)
    others.sa_sigaction(signal, info, context);
  else if (others.sa_handler != SIG_DFL && others.sa_handler != SIG_IGN)
    others.sa_handler(signal);
  else
    real_sigaction()(signal, &others, nullptr); // the access faults again, and that ends the process
}

} // namespace

void on_fault(bool (*touched)(char*, bool)) {
  if (touched_ != nullptr)
    return;
  touched_ = touched;
  struct sigaction ours = {};
  ours.sa_sigaction = &handle;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  real_sigaction()(SIGSEGV, &ours, &others);
}

} // namespace emulated_cuda::race

extern "C" __attribute__((visibility("default"))) int sigaction(
    int signal, const struct sigaction* wanted, struct sigaction* before) noexcept {
  using namespace emulated_cuda::race;
  if (signal != SIGSEGV || touched_ == nullptr)
    return real_sigaction()(signal, wanted, before);
  if (before != nullptr)
    *before = others;
  if (wanted != nullptr)
    others = *wanted;
  return 0;
}
