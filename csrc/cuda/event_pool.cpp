// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/event_pool.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

namespace torchlms {

class EventFence final : public Fence {
 public:
  explicit EventFence(EventPool& pool) : pool_(pool) {}
  ~EventFence() override {
    for (const cudaEvent_t event : events_) {
      pool_.give_back(event);
    }
  }
  EventFence(const EventFence&) = delete;
  EventFence& operator=(const EventFence&) = delete;

  void record(cudaStream_t stream) {
    events_.push_back(pool_.take());
    C10_CUDA_CHECK(cudaEventRecord(events_.back(), stream));
  }
  void wait() const override {
    for (const cudaEvent_t event : events_) {
      C10_CUDA_CHECK(cudaEventSynchronize(event)); // orders the stream's work before what the caller does next
    }
  }

 private:
  EventPool& pool_;
  c10::SmallVector<cudaEvent_t, 2> events_;
};

FencePtr EventPool::fence(c10::ArrayRef<cudaStream_t> streams) {
  const c10::cuda::CUDAGuard guard(device_);
  auto fence = std::make_shared<EventFence>(*this);
  for (const cudaStream_t stream : streams) {
    fence->record(stream);
  }
  return fence;
}

cudaEvent_t EventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      const cudaEvent_t event = idle_.back();
      idle_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
  return event;
}

void EventPool::give_back(cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(event);
}

} // namespace torchlms
