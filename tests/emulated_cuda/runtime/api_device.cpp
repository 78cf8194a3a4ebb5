// SPDX-License-Identifier: BSD-3-Clause
// Devices, errors and versions.
#include <cstdio>
#include <cstring>

#include "api.h"
#include "knobs.h"
#include "operators.h"
#include "stream.h"

using namespace emulated_cuda;

EMULATED_API cudaError_t cudaGetDeviceCount(int* count) {
  load_operators();
  *count = knobs().devices;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaSetDevice(int device) {
  return set_current_device(device) ? cudaSuccess : failed(cudaErrorInvalidDevice);
}

EMULATED_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  REQUIRE(device >= 0 && device < knobs().devices, cudaErrorInvalidDevice);
  auto& p = *properties = {};
  std::snprintf(p.name, sizeof p.name, "Emulated CUDA");
  p.major = 9;
  p.totalGlobalMem = knobs().device_bytes;
  p.multiProcessorCount = 4;
  p.warpSize = 32;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsPerMultiProcessor = 2048;
  p.sharedMemPerBlock = 49152;
  p.sharedMemPerMultiprocessor = 233472;
  p.sharedMemPerBlockOptin = 232448;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.unifiedAddressing = 1;
  p.asyncEngineCount = 2;
  p.pciBusID = device;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  REQUIRE(device >= 0 && device < knobs().devices, cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 4;
      break;
    case cudaDevAttrAsyncEngineCount:
      *value = 2;
      break;
    case cudaDevAttrUnifiedAddressing:
      *value = 1;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device);
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaDeviceSynchronize() {
  synchronize_device(current_device());
  return device_error();
}

EMULATED_API cudaError_t cudaGetLastError() {
  return last_error(true);
}

EMULATED_API cudaError_t cudaPeekAtLastError() {
  return last_error(false);
}

EMULATED_API const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorAssert:
      return "cudaErrorAssert";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    default:
      return "cudaErrorUnknown";
  }
}

EMULATED_API const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorAssert:
      return "device-side assert triggered";
    case cudaErrorNotSupported:
      return "operation not supported by the emulated device";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    default:
      return "error of the emulated device";
  }
}
