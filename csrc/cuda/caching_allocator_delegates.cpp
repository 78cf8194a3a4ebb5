// SPDX-License-Identifier: BSD-3-Clause
// The methods that only hand the call on. A test reads PyTorch's header for those that are missing.
#include "cuda/caching_allocator.h"

#include <utility>

namespace torchlms {

c10::DeleterFnPtr CachingAllocator::raw_deleter() const {
  return native_.raw_deleter();
}

bool CachingAllocator::is_simple_data_ptr(const c10::DataPtr& data) const {
  return native_.is_simple_data_ptr(data);
}

void CachingAllocator::copy_data(void* to, const void* from, size_t size) const {
  native_.copy_data(to, from, size);
}

bool CachingAllocator::initialized() {
  return native_.initialized();
}

void CachingAllocator::emptyCache(c10::MempoolId_t pool) {
  native_.emptyCache(pool);
}

void CachingAllocator::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  native_.recordStream(data, stream);
}

void CachingAllocator::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  native_.recordStream(data, stream);
}

c10::CachingDeviceAllocator::DeviceStats CachingAllocator::getDeviceStats(c10::DeviceIndex device) {
  return native_.getDeviceStats(device);
}

void CachingAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  native_.resetAccumulatedStats(device);
}

void CachingAllocator::resetPeakStats(c10::DeviceIndex device) {
  native_.resetPeakStats(device);
}

std::pair<size_t, size_t> CachingAllocator::getMemoryInfo(c10::DeviceIndex device) {
  return native_.getMemoryInfo(device);
}

void CachingAllocator::raw_delete(void* data) {
  native_.raw_delete(data);
}

void CachingAllocator::init(int device_count) {
  native_.init(device_count);
}

double CachingAllocator::getMemoryFraction(c10::DeviceIndex device) {
  return native_.getMemoryFraction(device);
}

void CachingAllocator::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  native_.setMemoryFraction(fraction, device);
}

std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize> CachingAllocator::getExpandableSegmentSizes(
    c10::DeviceIndex device) {
  return native_.getExpandableSegmentSizes(device);
}

void CachingAllocator::enable(bool value) {
  native_.enable(value);
}

bool CachingAllocator::isEnabled() const {
  return native_.isEnabled();
}

void CachingAllocator::cacheInfo(c10::DeviceIndex device, size_t* largest) {
  native_.cacheInfo(device, largest);
}

void* CachingAllocator::getBaseAllocation(void* data, size_t* size) {
  return native_.getBaseAllocation(data, size);
}

c10::cuda::CUDACachingAllocator::SnapshotInfo CachingAllocator::snapshot(
    c10::MempoolId_t pool, bool include_traces) {
  return native_.snapshot(pool, include_traces);
}

void CachingAllocator::beginAllocateToPool(
    c10::DeviceIndex device, c10::MempoolId_t pool, std::function<bool(cudaStream_t)> filter) {
  native_.beginAllocateToPool(device, pool, std::move(filter));
}

void CachingAllocator::endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  native_.endAllocateToPool(device, pool);
}

void CachingAllocator::releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  native_.releasePool(device, pool);
}

int CachingAllocator::getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) {
  return native_.getPoolUseCount(device, pool);
}

void CachingAllocator::createOrIncrefPool(
    c10::DeviceIndex device, c10::MempoolId_t pool, std::shared_ptr<Native> allocator) {
  native_.createOrIncrefPool(device, pool, std::move(allocator));
}

void CachingAllocator::setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use_on_oom) {
  native_.setUseOnOOM(device, pool, use_on_oom);
}

void CachingAllocator::setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) {
  native_.setNoSplit(device, pool);
}

bool CachingAllocator::checkPoolLiveAllocations(
    c10::DeviceIndex device,
    c10::MempoolId_t pool,
    const std::unordered_set<void*>& expected_live_allocations) {
  return native_.checkPoolLiveAllocations(device, pool, expected_live_allocations);
}

c10::cuda::CUDACachingAllocator::ShareableHandle CachingAllocator::shareIpcHandle(void* data) {
  return native_.shareIpcHandle(data);
}

std::shared_ptr<void> CachingAllocator::getIpcDevPtr(std::string handle) {
  return native_.getIpcDevPtr(std::move(handle));
}

bool CachingAllocator::isHistoryEnabled() {
  return native_.isHistoryEnabled();
}

void CachingAllocator::recordHistory(
    bool enabled,
    c10::cuda::CUDACachingAllocator::CreateContextFn context_recorder,
    size_t max_entries,
    c10::cuda::CUDACachingAllocator::RecordContext when,
    bool clear_history,
    const std::vector<std::string>& skip_actions) {
  native_.recordHistory(enabled, context_recorder, max_entries, when, clear_history, skip_actions);
}

void CachingAllocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& annotations) {
  native_.recordAnnotation(annotations);
}

void CachingAllocator::pushCompileContext(std::string& context) {
  native_.pushCompileContext(context);
}

void CachingAllocator::popCompileContext() {
  native_.popCompileContext();
}

void CachingAllocator::setUserMetadata(const std::string& metadata) {
  native_.setUserMetadata(metadata);
}

std::string CachingAllocator::getUserMetadata() {
  return native_.getUserMetadata();
}

void CachingAllocator::attachOutOfMemoryObserver(
    c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) {
  native_.attachOutOfMemoryObserver(std::move(observer));
}

void CachingAllocator::attachAllocatorTraceTracker(
    c10::cuda::CUDACachingAllocator::AllocatorTraceTracker tracker) {
  native_.attachAllocatorTraceTracker(std::move(tracker));
}

void CachingAllocator::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex other) {
  native_.enablePeerAccess(device, other);
}

cudaError_t CachingAllocator::memcpyAsync(
    void* to,
    int to_device,
    const void* from,
    int from_device,
    size_t size,
    cudaStream_t stream,
    bool is_peer_access_enabled) {
  return native_.memcpyAsync(to, to_device, from, from_device, size, stream, is_peer_access_enabled);
}

std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> CachingAllocator::getCheckpointState(
    c10::DeviceIndex device, c10::MempoolId_t pool) {
  return native_.getCheckpointState(device, pool);
}

c10::cuda::CUDACachingAllocator::CheckpointDelta CachingAllocator::setCheckpointPoolState(
    c10::DeviceIndex device, std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> state) {
  return native_.setCheckpointPoolState(device, std::move(state));
}

std::string CachingAllocator::name() {
  return native_.name(); // some of PyTorch asks whether it is "native"
}

} // namespace torchlms
