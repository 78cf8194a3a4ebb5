// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <memory>
#include <mutex>

#include "cuda/device_memory.h"
#include "cuda/native_delegate.h"

namespace torchlms {

// PyTorch's caching allocator with a budget per device, which bounds reserved memory, fragmentation included.
// See Note [CUDA's caching allocator] in the source. Everything else is the native allocator's doing: its
// statistics, snapshots, pools and the deleters of its blocks are as ever.
//
// Thread-safe. In place only while a device has a budget; never destroyed, since storages refer to it.
// Failure: c10::OutOfMemoryError.
class CachingAllocator final : public NewerMethods {
 public:
  // Throws c10::Error when the allocator in place is none that can be followed (cudaMallocAsync, pluggable).
  static CachingAllocator& get();

  DeviceMemory& memory(c10::DeviceIndex device);
  // Of that device, now.
  Bytes reserved_bytes(c10::DeviceIndex device);
  void set_budget(c10::DeviceIndex device, Bytes budget, ReclaimFn reclaim, DescribeFn describe);
  void clear_budget(c10::DeviceIndex device);
  // Within the budget without reclaiming anything, on the current device and stream; else null.
  c10::DataPtr try_allocate(size_t size);

  c10::DataPtr allocate(size_t size) override;
  void* raw_alloc(size_t size) override;
  void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override;
  c10::DataPtr allocateWithAddress(size_t size, void* address);

  // All below hand the call on.
  c10::DeleterFnPtr raw_deleter() const override;
  bool is_simple_data_ptr(const c10::DataPtr& data) const override;
  void copy_data(void* to, const void* from, size_t size) const override;
  bool initialized() override;
  void emptyCache(c10::MempoolId_t pool) override;
  using Native::recordStream;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;
  void raw_delete(void* data) override;
  void init(int device_count) override;
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize> getExpandableSegmentSizes(
      c10::DeviceIndex device) override;
  void enable(bool value) override;
  bool isEnabled() const override;
  void cacheInfo(c10::DeviceIndex device, size_t* largest) override;
  void* getBaseAllocation(void* data, size_t* size) override;
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(c10::MempoolId_t pool, bool include_traces) override;
  void beginAllocateToPool(
      c10::DeviceIndex device, c10::MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  void createOrIncrefPool(
      c10::DeviceIndex device, c10::MempoolId_t pool, std::shared_ptr<Native> allocator) override;
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use_on_oom) override;
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  bool checkPoolLiveAllocations(
      c10::DeviceIndex device,
      c10::MempoolId_t pool,
      const std::unordered_set<void*>& expected_live_allocations) override;
  c10::cuda::CUDACachingAllocator::ShareableHandle shareIpcHandle(void* data) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  bool isHistoryEnabled() override;
  void recordHistory(
      bool enabled,
      c10::cuda::CUDACachingAllocator::CreateContextFn context_recorder,
      size_t max_entries,
      c10::cuda::CUDACachingAllocator::RecordContext when,
      bool clear_history,
      const std::vector<std::string>& skip_actions) override;
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& annotations) override;
  void pushCompileContext(std::string& context) override;
  void popCompileContext() override;
  void setUserMetadata(const std::string& metadata) override;
  std::string getUserMetadata() override;
  void attachOutOfMemoryObserver(c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) override;
  void attachAllocatorTraceTracker(c10::cuda::CUDACachingAllocator::AllocatorTraceTracker tracker) override;
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex other) override;
  cudaError_t memcpyAsync(
      void* to,
      int to_device,
      const void* from,
      int from_device,
      size_t size,
      cudaStream_t stream,
      bool is_peer_access_enabled) override;
  std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> getCheckpointState(
      c10::DeviceIndex device, c10::MempoolId_t pool) override;
  c10::cuda::CUDACachingAllocator::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device,
      std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> state) override;
  std::string name() override;

 private:
  explicit CachingAllocator(Native& native);
  void follow();
  void install();
  void remove();
  template <class F>
  auto within_budget(size_t size, const F& allocate) -> decltype(allocate());
  [[noreturn]] void throw_out_of_memory(
      c10::DeviceIndex device, size_t size, const DeviceMemory::Policy& policy, const std::string& cause);

  std::array<DeviceMemory, C10_COMPILE_TIME_MAX_GPUS> memory_;

  std::mutex mutex_; // of installing and removing; calls the native allocator
  // Guarded by mutex_.
  std::array<double, C10_COMPILE_TIME_MAX_GPUS> former_fraction_{};
  std::array<Bytes, C10_COMPILE_TIME_MAX_GPUS> total_{}; // of the device; 0: not asked yet
  int num_budgets_ = 0;
};

} // namespace torchlms
