// SPDX-License-Identifier: BSD-3-Clause
// Device and pinned memory.
#include "api.h"
#include "knobs.h"
#include "memory.h"
#include "operators.h"
#include "stream.h"

using namespace emulated_cuda;

EMULATED_API cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  FAIL_AS_ASKED(cudaErrorMemoryAllocation);
  observe_caching_allocator();
  *pointer = allocate_device(current_device(), bytes);
  return *pointer != nullptr ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

EMULATED_API cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr)
    return cudaSuccess;
  // The real one waits for the device too.
  synchronize_device(place_of(pointer).device);
  return free_device(static_cast<char*>(pointer)) ? device_error() : failed(cudaErrorInvalidValue);
}

EMULATED_API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = knobs().device_bytes;
  *free = *total - device_bytes_used(current_device());
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  FAIL_AS_ASKED(cudaErrorMemoryAllocation);
  *pointer = allocate_pinned(bytes);
  return *pointer != nullptr ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

EMULATED_API cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, 0);
}

EMULATED_API cudaError_t cudaFreeHost(void* pointer) {
  if (pointer == nullptr)
    return cudaSuccess;
  synchronize_device(-1);
  return free_pinned(static_cast<char*>(pointer)) ? device_error() : failed(cudaErrorInvalidValue);
}

EMULATED_API cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  FAIL_AS_ASKED(cudaErrorMemoryAllocation);
  return register_pinned(static_cast<char*>(pointer), bytes) ? cudaSuccess
                                                             : failed(cudaErrorMemoryAllocation);
}

EMULATED_API cudaError_t cudaHostUnregister(void* pointer) {
  synchronize_device(-1);
  return unregister_pinned(static_cast<char*>(pointer)) ? cudaSuccess : failed(cudaErrorInvalidValue);
}

EMULATED_API cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  const Place place = place_of(pointer);
  attributes->device = place.device;
  attributes->type = place.where == Where::kDevice ? cudaMemoryTypeDevice
      : place.where == Where::kPinned              ? cudaMemoryTypeHost
                                                   : cudaMemoryTypeUnregistered;
  if (place.where != Where::kPageable)
    attributes->devicePointer = const_cast<void*>(pointer);
  if (place.where != Where::kDevice)
    attributes->hostPointer = const_cast<void*>(pointer);
  return cudaSuccess;
}
