// SPDX-License-Identifier: BSD-3-Clause
// libcuda.so.1: enough of the driver for PyTorch's lazy loader to find its symbols.

#define STUB(function)                                               \
  extern "C" __attribute__((visibility("default"))) int function() { \
    return 801; /* CUDA_ERROR_NOT_SUPPORTED */                       \
  }

extern "C" __attribute__((visibility("default"))) int cuInit(unsigned) {
  return 0;
}

extern "C" __attribute__((visibility("default"))) int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}

extern "C" __attribute__((visibility("default"))) int cuCtxGetCurrent(void** context) {
  *context = context; // any but null
  return 0;
}

extern "C" __attribute__((visibility("default"))) int cuCtxSetCurrent(void*) {
  return 0;
}

extern "C" __attribute__((visibility("default"))) int cuDevicePrimaryCtxGetState(
    int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return 0;
}

STUB(cuDeviceGetAttribute)
STUB(cuDevicePrimaryCtxRetain)
STUB(cuFuncGetAttribute)
STUB(cuFuncSetAttribute)
STUB(cuFuncSetCacheConfig)
STUB(cuGetErrorString)
STUB(cuLaunchCooperativeKernel)
STUB(cuLaunchKernel)
STUB(cuLinkAddData_v2)
STUB(cuLinkComplete)
STUB(cuLinkCreate_v2)
STUB(cuModuleGetFunction)
STUB(cuModuleLoad)
STUB(cuModuleLoadData)
STUB(cuModuleLoadDataEx)
STUB(cuModuleUnload)
STUB(cuOccupancyMaxActiveBlocksPerMultiprocessor)
STUB(cuPointerGetAttribute)
STUB(cuTensorMapEncodeTiled)
