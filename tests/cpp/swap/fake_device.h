// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "swap/device.h"

namespace torchlms {

// A device of host memory, for tests of what lies behind the seam. Counts exactly, under one lock;
// rounds blocks up, as real devices do; refuses on request; and fails the test when it is destroyed
// before its blocks or with managed bytes left.
//
// Thread-safe. Must outlive its blocks.
class FakeDevice : public Device {
 public:
  static constexpr Bytes kRounding = 512;

  ~FakeDevice() override {
    EXPECT_EQ(held_bytes(), 0);
    EXPECT_EQ(managed_bytes(), 0);
  }

  // The next `count` attempts to get memory find none, whatever the budget.
  void refuse(int count) {
    const std::lock_guard lock(mutex_);
    num_refusals_ = count;
  }
  // Called before each block is freed, on the thread that frees it. Requires: nothing is in flight.
  void on_free(std::function<void()> observer) {
    on_free_ = std::move(observer);
  }

  c10::DeviceType type() const override {
    return c10::DeviceType::CPU;
  }
  Bytes total_bytes() const override {
    return Bytes{1} << 40;
  }
  Bytes available_bytes() const override {
    return total_bytes() - held_bytes();
  }
  c10::Allocator* allocator() override {
    return &allocator_;
  }
  c10::DataPtr allocate(Bytes size) override {
    static thread_local bool is_reclaiming = false;
    bool is_exhausted = false;
    while (size > 0) {
      Bytes missing = 0;
      if (void* data = attempt(size, missing)) {
        return {data, data, &free, c10::Device(type())};
      }
      const auto [reclaim, describe] = policy();
      if (is_exhausted || is_reclaiming || !reclaim) {
        const std::string ending = describe && !is_reclaiming ? describe(size) : "";
        C10_THROW_ERROR(OutOfMemoryError, "The fake device is out of memory. " + ending);
      }
      is_reclaiming = true;
      is_exhausted = !reclaim(missing);
      is_reclaiming = false;
    }
    return {nullptr, nullptr, &free, c10::Device(type())};
  }

  c10::DataPtr try_allocate(Bytes size) override {
    Bytes missing = 0;
    void* data = size == 0 ? nullptr : attempt(size, missing);
    return {data, data, &free, c10::Device(type())};
  }
  Block block_of(const void* data) const override {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(data);
    return found == blocks_.end() ? Block{} : found->second;
  }
  uint64_t next_serial() const override {
    const std::lock_guard lock(mutex_);
    return next_serial_;
  }

  Bytes held_bytes() const override {
    const std::lock_guard lock(mutex_);
    return held_;
  }
  void add_managed_bytes(Bytes delta) override {
    const std::lock_guard lock(mutex_);
    managed_ += delta;
    note_peaks();
  }
  Bytes managed_bytes() const override {
    const std::lock_guard lock(mutex_);
    return managed_;
  }
  Peaks take_peaks() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(peaks_, {held_, held_ - managed_});
  }

  void set_budget(Bytes budget, ReclaimFn reclaim, DescribeFn describe) override {
    const std::lock_guard lock(mutex_);
    budget_ = budget;
    reclaim_ = std::move(reclaim);
    describe_ = std::move(describe);
  }
  void clear_budget() override {
    set_budget(std::numeric_limits<Bytes>::max(), nullptr, nullptr);
  }

 private:
  // In front of each block, so that its deleter finds the device although its context is its data.
  struct alignas(64) Header {
    FakeDevice* owner;
  };
  static constexpr auto kAlignment = std::align_val_t{alignof(Header)};

  struct Allocator final : c10::Allocator {
    explicit Allocator(FakeDevice& device) : device(device) {}
    c10::DataPtr allocate(size_t size) override {
      return device.allocate(static_cast<Bytes>(size));
    }
    c10::DeleterFnPtr raw_deleter() const override {
      return &FakeDevice::free;
    }
    void copy_data(void* to, const void* from, size_t count) const override {
      default_copy_data(to, from, count);
    }
    FakeDevice& device;
  };

  std::pair<ReclaimFn, DescribeFn> policy() const {
    const std::lock_guard lock(mutex_);
    return {reclaim_, describe_};
  }

  void* attempt(Bytes size, Bytes& missing) {
    const std::lock_guard lock(mutex_);
    const Bytes rounded = (size + kRounding - 1) / kRounding * kRounding;
    missing = held_ + rounded - budget_;
    if (num_refusals_ > 0) {
      --num_refusals_;
      missing = rounded;
    }
    if (missing > 0) {
      return nullptr;
    }
    void* memory = ::operator new(sizeof(Header) + static_cast<size_t>(rounded), kAlignment);
    Header* header = new (memory) Header{this};
    blocks_[header + 1] = {rounded, next_serial_++};
    held_ += rounded;
    note_peaks();
    return header + 1;
  }

  static void free(void* data) {
    if (data == nullptr) {
      return;
    }
    Header* header = static_cast<Header*>(data) - 1;
    FakeDevice& owner = *header->owner;
    if (owner.on_free_) {
      owner.on_free_();
    }
    {
      const std::lock_guard lock(owner.mutex_);
      const auto block = owner.blocks_.find(data);
      owner.held_ -= block->second.bytes;
      owner.blocks_.erase(block);
    }
    ::operator delete(header, kAlignment);
  }

  // Requires: mutex_ is held.
  void note_peaks() {
    peaks_ = {std::max(peaks_.held, held_), std::max(peaks_.base, held_ - managed_)};
  }

  Allocator allocator_{*this};
  std::function<void()> on_free_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::map<const void*, Block> blocks_;
  uint64_t next_serial_ = 0;
  Bytes held_ = 0;
  Bytes managed_ = 0;
  Peaks peaks_;
  int num_refusals_ = 0;
  Bytes budget_ = std::numeric_limits<Bytes>::max();
  ReclaimFn reclaim_;
  DescribeFn describe_;
};

} // namespace torchlms
