// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>

#include "swap/device.h"

namespace torchlms {

// The bytes held, how many of them are managed, and the highest held and held - managed (base) since
// take_peaks(). Lock-free.
//
// Order for callers: managed is raised before the allocation of a block that will be managed, and
// lowered after its free. In between base dips, and a dip makes no peak. Base has its own atomic,
// because the difference of two read one after the other could be higher than it ever was.
class HeldCounter {
 public:
  void add(Bytes size) {
    raise(held_peak_, held_.fetch_add(size, std::memory_order_relaxed) + size);
    raise(base_peak_, base_.fetch_add(size, std::memory_order_relaxed) + size);
  }
  void subtract(Bytes size) {
    held_.fetch_sub(size, std::memory_order_relaxed);
    base_.fetch_sub(size, std::memory_order_relaxed);
  }
  void add_managed(Bytes delta) {
    managed_.fetch_add(delta, std::memory_order_relaxed);
    raise(base_peak_, base_.fetch_sub(delta, std::memory_order_relaxed) - delta);
  }

  Bytes held() const {
    return held_.load(std::memory_order_relaxed);
  }
  Bytes managed() const {
    return managed_.load(std::memory_order_relaxed);
  }

  Device::Peaks take_peaks() {
    return {take_peak(held_peak_, held_), take_peak(base_peak_, base_)};
  }

 private:
  static void raise(std::atomic<Bytes>& peak, Bytes value) {
    Bytes seen = peak.load(std::memory_order_relaxed);
    while (seen < value && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }
  static Bytes take_peak(std::atomic<Bytes>& peak, const std::atomic<Bytes>& current) {
    const Bytes taken = peak.exchange(current.load());
    // What was added between the two must not be missing from the new peak.
    raise(peak, current.load());
    return taken;
  }

  alignas(64) std::atomic<Bytes> held_{0};
  std::atomic<Bytes> base_{0};
  std::atomic<Bytes> managed_{0};
  std::atomic<Bytes> held_peak_{0};
  std::atomic<Bytes> base_peak_{0};
};

} // namespace torchlms
