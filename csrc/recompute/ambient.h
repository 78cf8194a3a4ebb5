// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/Context.h>

namespace torchlms {

// The state around an op that its bits depend on beside its inputs. A plain value.
struct Ambient {
  // Of the calling thread, now.
  static Ambient current();

  bool operator==(const Ambient&) const = default;

  int num_threads = 1; // of the intra-op pool, as this thread sees it
  bool deterministic = false;
  bool warn_only = false;
  bool uses_mkldnn = true;
  bool uses_cudnn = true;
  bool cudnn_benchmark = false;
  bool cudnn_deterministic = false;
  at::Float32MatmulPrecision matmul_precision = at::Float32MatmulPrecision::HIGHEST;
};

// Sets it for the calling thread and restores what was there. The number of threads is better changed on a
// thread of its own (see Note [Thread counts]). The other parts are the process's: ops of other threads
// that run meanwhile see them too.
class AmbientGuard {
 public:
  explicit AmbientGuard(const Ambient& ambient);
  ~AmbientGuard();
  AmbientGuard(const AmbientGuard&) = delete;
  AmbientGuard& operator=(const AmbientGuard&) = delete;

 private:
  const Ambient before_;
  const bool differs_;
};

} // namespace torchlms
