// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace torchlms {

// The part of delegating to PyTorch's own allocator that depends on its version: methods that only some
// versions declare. None is marked `override`, so that each overrides where there is something to override.
class NewerMethods : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
 public:
  using Native = c10::cuda::CUDACachingAllocator::CUDAAllocator;

  explicit NewerMethods(Native& native) : native_(native) {}

  void markCaptureBegin(c10::DeviceIndex device) {
    [&](auto& native) {
      if constexpr (requires { native.markCaptureBegin(device); }) {
        native.markCaptureBegin(device);
      }
    }(native_);
  }
  void markCaptureEnd(c10::DeviceIndex device) {
    [&](auto& native) {
      if constexpr (requires { native.markCaptureEnd(device); }) {
        native.markCaptureEnd(device);
      }
    }(native_);
  }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* data) {
    return [&](auto& native) -> std::shared_ptr<c10::GatheredContext> {
      if constexpr (requires { native.getContextForPointer(data); }) {
        return native.getContextForPointer(data);
      }
      return nullptr;
    }(native_);
  }
  bool supportsUserMetadata() {
    return [&](auto& native) {
      if constexpr (requires { native.supportsUserMetadata(); }) {
        return native.supportsUserMetadata();
      }
      return false;
    }(native_);
  }
  void annotateMemory(const void* data, const std::string& metadata) {
    [&](auto& native) {
      if constexpr (requires { native.annotateMemory(data, metadata); }) {
        native.annotateMemory(data, metadata);
      }
    }(native_);
  }
  void attachOomRejectionObserver(std::function<void(int64_t, size_t, size_t, size_t)> observer) {
    [&](auto& native) {
      if constexpr (requires { native.attachOomRejectionObserver(nullptr); }) {
        native.attachOomRejectionObserver(std::move(observer));
      }
    }(native_);
  }

 protected:
  Native& native_;
};

} // namespace torchlms
