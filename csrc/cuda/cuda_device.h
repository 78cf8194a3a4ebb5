// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cuda/caching_allocator.h"
#include "cuda/copy_stream.h"
#include "cuda/event_pool.h"
#include "swap/device.h"

namespace torchlms {

// One GPU: its memory behind the CachingAllocator, copies on streams of its own. The stream that ops use is asked for
// at each call, since a program may change it. Thread-safe; never destroyed. Failure: c10::Error with
// what CUDA says.
class CudaDevice final : public Device {
 public:
  // Null when the machine has no such GPU. Makes a CUDA context.
  static Device* find(c10::DeviceIndex index);

  c10::DeviceType type() const override;
  c10::Device device() const override;
  Bytes total_bytes() const override;
  Bytes available_bytes() const override;

  c10::Allocator* allocator() override;
  c10::DataPtr allocate(Bytes size) override;
  c10::DataPtr try_allocate(Bytes size) override;
  Block block_of(const void* data) const override;
  uint64_t next_serial() const override;

  Bytes held_bytes() const override;
  Bytes cached_bytes() const override;
  void add_managed_bytes(Bytes delta) override;
  Bytes managed_bytes() const override;
  Peaks take_peaks() override;

  void set_budget(Bytes budget, ReclaimFn reclaim, DescribeFn describe) override;
  void clear_budget() override;

  bool is_host_memory() const override;
  FencePtr fence(const void* block) override;
  MomentPtr moment() override;
  void note_use(const void* block) override;
  void share(const c10::DataPtr& block) override;
  void copy_out(void* host, const void* block, Bytes size) override;
  void copy_in(void* block, const void* host, Bytes size) override;
  void* allocate_pinned(Bytes size) override;
  void free_pinned(void* data) override;
  void release_cached() override;
  Bytes wasted_bytes() const override;
  bool is_capturing() const override;

 private:
  explicit CudaDevice(c10::DeviceIndex index);

  const c10::DeviceIndex index_;
  CachingAllocator& allocator_ = CachingAllocator::get();
  DeviceMemory& memory_;
  Fences fences_;
  TimedEvents moments_;
  CopyStreams out_;
  CopyStreams in_;
};

} // namespace torchlms
