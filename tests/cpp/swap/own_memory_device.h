// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "swap/fake_device.h"

namespace torchlms {

// A fake device that has memory of its own, as a GPU: bytes leave it by copies only, and some host memory can
// be page-locked. Its work is pending until finish_work() is called, where hold_work() asks for that.
class OwnMemoryDevice : public FakeDevice {
 public:
  ~OwnMemoryDevice() override {
    EXPECT_TRUE(pinned_.empty());
  }

  // No more than these bytes can be page-locked at once.
  void allow_pinned(Bytes size) {
    pinnable_ = size;
  }
  Bytes pinned_bytes() const {
    return pinned_bytes_;
  }
  void hold_work() {
    work_ = std::make_shared<Work>();
  }
  void finish_work() {
    const std::lock_guard lock(work_->mutex);
    work_->is_done = true;
    work_->changed.notify_all();
  }
  int num_copies() const {
    return num_copies_;
  }

  bool is_host_memory() const override {
    return false;
  }
  FencePtr fence(const void*) override {
    return work_;
  }
  void copy_out(void* host, const void* block, Bytes size) override {
    EXPECT_TRUE(!work_ || work_->is_done) << "a copy of bytes that are not computed yet";
    ++num_copies_;
    std::memcpy(host, block, static_cast<size_t>(size));
  }
  void copy_in(void* block, const void* host, Bytes size) override {
    EXPECT_TRUE(!work_ || work_->is_done) << "a copy over bytes that are still used";
    ++num_copies_;
    std::memcpy(block, host, static_cast<size_t>(size));
  }
  void* allocate_pinned(Bytes size) override {
    const std::lock_guard lock(pinned_mutex_);
    if (pinned_bytes_ + size > pinnable_) {
      return nullptr;
    }
    void* data = std::aligned_alloc(4096, static_cast<size_t>(size));
    pinned_[data] = size;
    pinned_bytes_ += size;
    return data;
  }
  void free_pinned(void* data) override {
    const std::lock_guard lock(pinned_mutex_);
    pinned_bytes_ -= pinned_.at(data);
    pinned_.erase(data);
    std::free(data);
  }

 private:
  struct Work final : Fence {
    void wait() const override {
      std::unique_lock lock(mutex);
      changed.wait(lock, [this] { return is_done.load(); });
    }
    mutable std::mutex mutex;
    mutable std::condition_variable changed;
    std::atomic<bool> is_done{false};
  };

  std::shared_ptr<Work> work_;
  std::atomic<int> num_copies_{0};
  std::mutex pinned_mutex_;
  // Guarded by pinned_mutex_.
  std::map<void*, Bytes> pinned_;
  std::atomic<Bytes> pinned_bytes_{0};
  Bytes pinnable_ = Bytes{1} << 30;
};

} // namespace torchlms
