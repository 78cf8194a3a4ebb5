// SPDX-License-Identifier: BSD-3-Clause
#include "forked.h"

#include <atomic>
#include <pthread.h>

namespace torchlms {

namespace {

std::atomic<bool> is_forked{false};
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { is_forked = true; });

} // namespace

bool in_forked_child() noexcept {
  return is_forked.load(std::memory_order_relaxed);
}

} // namespace torchlms
