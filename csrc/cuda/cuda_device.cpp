// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/cuda_device.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace torchlms {

Device* CudaDevice::find(c10::DeviceIndex index) {
  static std::mutex mutex;
  static std::array<Device*, C10_COMPILE_TIME_MAX_GPUS> devices{}; // guarded by mutex
  if (index < 0 || index >= c10::cuda::device_count()) {
    return nullptr;
  }
  const std::lock_guard lock(mutex);
  Device*& device = devices.at(static_cast<size_t>(index));
  if (!device) {
    device = new CudaDevice(index);
  }
  return device;
}

CudaDevice::CudaDevice(c10::DeviceIndex index)
    : index_(index),
      memory_(allocator_.memory(index)),
      fences_(index),
      moments_(index),
      out_(index),
      in_(index) {}

c10::DeviceType CudaDevice::type() const {
  return c10::DeviceType::CUDA;
}

c10::Device CudaDevice::device() const {
  return {c10::DeviceType::CUDA, index_};
}

Bytes CudaDevice::total_bytes() const {
  return static_cast<Bytes>(allocator_.getMemoryInfo(index_).second);
}

Bytes CudaDevice::available_bytes() const {
  return static_cast<Bytes>(allocator_.getMemoryInfo(index_).first) + cached_bytes();
}

c10::Allocator* CudaDevice::allocator() {
  return &allocator_;
}

c10::DataPtr CudaDevice::allocate(Bytes size) {
  const c10::cuda::CUDAGuard guard(index_);
  return allocator_.allocate(static_cast<size_t>(size));
}

c10::DataPtr CudaDevice::try_allocate(Bytes size) {
  const c10::cuda::CUDAGuard guard(index_);
  return allocator_.try_allocate(static_cast<size_t>(size));
}

Device::Block CudaDevice::block_of(const void* data) const {
  return memory_.block_of(data);
}

uint64_t CudaDevice::next_serial() const {
  return memory_.next_serial();
}

Bytes CudaDevice::held_bytes() const {
  return memory_.held_bytes();
}

Bytes CudaDevice::cached_bytes() const {
  return std::max<Bytes>(0, allocator_.reserved_bytes(index_) - memory_.held_bytes());
}

void CudaDevice::add_managed_bytes(Bytes delta) {
  memory_.counter().add_managed(delta);
}

Bytes CudaDevice::managed_bytes() const {
  return memory_.counter().managed();
}

Device::Peaks CudaDevice::take_peaks() {
  return memory_.counter().take_peaks();
}

void CudaDevice::set_budget(Bytes budget, ReclaimFn reclaim, DescribeFn describe) {
  allocator_.set_budget(index_, budget, std::move(reclaim), std::move(describe));
}

void CudaDevice::clear_budget() {
  allocator_.clear_budget(index_);
}

bool CudaDevice::is_host_memory() const {
  return false;
}

FencePtr CudaDevice::fence(const void* block) {
  DeviceMemory::Streams streams = memory_.streams_of(block);
  const cudaStream_t current = c10::cuda::getCurrentCUDAStream(index_).stream();
  if (std::find(streams.begin(), streams.end(), current) == streams.end()) {
    streams.push_back(current);
  }
  return fences_.fence(streams);
}

MomentPtr CudaDevice::moment() {
  return is_capturing() ? nullptr : moments_.now(c10::cuda::getCurrentCUDAStream(index_).stream());
}

void CudaDevice::note_use(const void* block) {
  memory_.add_stream(block, c10::cuda::getCurrentCUDAStream(index_).stream());
}

void CudaDevice::share(const c10::DataPtr& block) {
  const auto current = c10::cuda::getCurrentCUDAStream(index_);
  const DeviceMemory::Streams streams = memory_.streams_of(block.get());
  if (!streams.empty() && streams.front() != current.stream()) {
    allocator_.recordStream(block, current);
    memory_.add_stream(block.get(), current.stream());
  }
}

void CudaDevice::copy_out(void* host, const void* block, Bytes size) {
  out_.copy(host, block, size, cudaMemcpyDeviceToHost);
}

void CudaDevice::copy_in(void* block, const void* host, Bytes size) {
  in_.copy(block, host, size, cudaMemcpyHostToDevice);
}

void* CudaDevice::allocate_pinned(Bytes size) {
  const c10::cuda::CUDAGuard guard(index_);
  void* data = nullptr;
  if (cudaHostAlloc(&data, static_cast<size_t>(size), cudaHostAllocDefault) != cudaSuccess) {
    static_cast<void>(cudaGetLastError()); // else the next op would be blamed for it
    return nullptr;
  }
  return data;
}

void CudaDevice::free_pinned(void* data) {
  C10_CUDA_CHECK_WARN(cudaFreeHost(data)); // at exit the driver may be gone
}

void CudaDevice::release_cached() {
  allocator_.emptyCache({0, 0});
}

Bytes CudaDevice::wasted_bytes() const {
  return memory_.wasted_bytes();
}

bool CudaDevice::is_capturing() const {
  const c10::cuda::CUDAGuard guard(index_);
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

} // namespace torchlms
