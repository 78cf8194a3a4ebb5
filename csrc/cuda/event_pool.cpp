// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/event_pool.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/SmallVector.h>

#include <memory>

namespace torchlms {

namespace {

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
    events_.push_back(pool_.record(stream));
  }
  void wait() const override {
    for (const cudaEvent_t event : events_) {
      C10_CUDA_CHECK(
          cudaEventSynchronize(event)); // orders the stream's work before what the caller does next
    }
  }

 private:
  EventPool& pool_;
  c10::SmallVector<cudaEvent_t, 2> events_;
};

class EventMoment final : public Moment {
 public:
  EventMoment(EventPool& pool, cudaStream_t stream) : pool_(pool), event_(pool.record(stream)) {}
  ~EventMoment() override {
    pool_.give_back(event_);
  }
  EventMoment(const EventMoment&) = delete;
  EventMoment& operator=(const EventMoment&) = delete;

  double us_since(const Moment& earlier) const override {
    const cudaEvent_t start = static_cast<const EventMoment&>(earlier).event_;
    float ms = 0;
    C10_CUDA_CHECK(cudaEventSynchronize(start)); // the time of an event is known once it is past
    C10_CUDA_CHECK(cudaEventSynchronize(event_));
    C10_CUDA_CHECK(cudaEventElapsedTime(&ms, start, event_));
    return static_cast<double>(ms) * 1e3;
  }

 private:
  EventPool& pool_;
  const cudaEvent_t event_;
};

} // namespace

cudaEvent_t EventPool::record(cudaStream_t stream) {
  const c10::cuda::CUDAGuard guard(device_);
  cudaEvent_t event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      event = idle_.back();
      idle_.pop_back();
    }
  }
  if (!event) {
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, flags_));
  }
  C10_CUDA_CHECK(cudaEventRecord(event, stream));
  return event;
}

void EventPool::give_back(cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(event);
}

FencePtr Fences::fence(c10::ArrayRef<cudaStream_t> streams) {
  auto fence = std::make_shared<EventFence>(events_);
  for (const cudaStream_t stream : streams) {
    fence->record(stream);
  }
  return fence;
}

MomentPtr TimedEvents::now(cudaStream_t stream) {
  return std::make_shared<EventMoment>(events_, stream);
}

} // namespace torchlms
