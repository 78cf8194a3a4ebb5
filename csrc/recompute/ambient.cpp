// SPDX-License-Identifier: BSD-3-Clause
#include "recompute/ambient.h"

#include "recompute/thread_count.h"

namespace torchlms {

namespace {

const char* to_string(at::Float32MatmulPrecision precision) {
  switch (precision) {
    case at::Float32MatmulPrecision::HIGHEST:
      return "highest";
    case at::Float32MatmulPrecision::HIGH:
      return "high";
    case at::Float32MatmulPrecision::MEDIUM:
      return "medium";
  }
  return "highest";
}

// Only what differs is set: some setters warn, and most are the process's.
void change(const Ambient& from, const Ambient& to) {
  at::Context& context = at::globalContext();
  if (from.num_threads != to.num_threads) {
    set_thread_count(to.num_threads);
  }
  if (from.deterministic != to.deterministic || from.warn_only != to.warn_only) {
    context.setDeterministicAlgorithms(to.deterministic, to.warn_only);
  }
  if (from.uses_mkldnn != to.uses_mkldnn) {
    context.setUserEnabledMkldnn(to.uses_mkldnn);
  }
  if (from.uses_cudnn != to.uses_cudnn) {
    context.setUserEnabledCuDNN(to.uses_cudnn);
  }
  if (from.cudnn_benchmark != to.cudnn_benchmark) {
    context.setBenchmarkCuDNN(to.cudnn_benchmark);
  }
  if (from.cudnn_deterministic != to.cudnn_deterministic) {
    context.setDeterministicCuDNN(to.cudnn_deterministic);
  }
  if (from.matmul_precision != to.matmul_precision) {
    context.setFloat32MatmulPrecision(to_string(to.matmul_precision));
  }
}

} // namespace

Ambient Ambient::current() {
  const at::Context& context = at::globalContext();
  Ambient ambient;
  ambient.num_threads = thread_count();
  ambient.deterministic = context.deterministicAlgorithms();
  ambient.warn_only = context.deterministicAlgorithmsWarnOnly();
  ambient.uses_mkldnn = context.userEnabledMkldnn();
  ambient.uses_cudnn = context.userEnabledCuDNN();
  ambient.cudnn_benchmark = context.benchmarkCuDNN();
  ambient.cudnn_deterministic = context.deterministicCuDNN();
  ambient.matmul_precision = context.float32MatmulPrecision();
  return ambient;
}

AmbientGuard::AmbientGuard(const Ambient& ambient)
    : before_(Ambient::current()), differs_(!(before_ == ambient)) {
  if (differs_) {
    change(before_, ambient);
  }
}

AmbientGuard::~AmbientGuard() {
  if (differs_) {
    change(Ambient::current(), before_);
  }
}

} // namespace torchlms
