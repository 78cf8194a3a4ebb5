// SPDX-License-Identifier: BSD-3-Clause
// Entry points that PyTorch links to and the emulation does not have. Declared here without their
// arguments, so this file cannot include CUDA's headers.
#include <cstdio>

namespace {

int refuse(const char* function) {
  std::fprintf(stderr, "emulated_cuda: %s is not emulated\n", function);
  return 801; // cudaErrorNotSupported
}

} // namespace

#define UNSUPPORTED(function)                                        \
  extern "C" __attribute__((visibility("default"))) int function() { \
    return refuse(#function);                                        \
  }

UNSUPPORTED(cudaDeviceEnablePeerAccess)
UNSUPPORTED(cudaDeviceGetDefaultMemPool)
UNSUPPORTED(cudaDeviceGetGraphMemAttribute)
UNSUPPORTED(cudaDeviceSetGraphMemAttribute)
UNSUPPORTED(cudaFreeAsync)
UNSUPPORTED(cudaGetSymbolAddress)
UNSUPPORTED(cudaGraphAddNode)
UNSUPPORTED(cudaGraphConditionalHandleCreate)
UNSUPPORTED(cudaGraphDebugDotPrint)
UNSUPPORTED(cudaGraphNodeGetDependencies)
UNSUPPORTED(cudaGraphRetainUserObject)
UNSUPPORTED(cudaIpcCloseMemHandle)
UNSUPPORTED(cudaIpcGetEventHandle)
UNSUPPORTED(cudaIpcGetMemHandle)
UNSUPPORTED(cudaIpcOpenEventHandle)
UNSUPPORTED(cudaIpcOpenMemHandle)
UNSUPPORTED(cudaKernelSetAttributeForDevice)
UNSUPPORTED(cudaLibraryGetGlobal)
UNSUPPORTED(cudaLibraryGetKernel)
UNSUPPORTED(cudaLibraryGetKernelCount)
UNSUPPORTED(cudaLibraryGetManaged)
UNSUPPORTED(cudaLibraryGetUnifiedFunction)
UNSUPPORTED(cudaLibraryLoadData)
UNSUPPORTED(cudaLibraryLoadFromFile)
UNSUPPORTED(cudaLibraryUnload)
UNSUPPORTED(cudaMallocAsync)
UNSUPPORTED(cudaMallocManaged)
UNSUPPORTED(cudaMemPoolGetAttribute)
UNSUPPORTED(cudaMemPoolSetAccess)
UNSUPPORTED(cudaMemPoolSetAttribute)
UNSUPPORTED(cudaMemPoolTrimTo)
UNSUPPORTED(cudaMemcpyToSymbol)
UNSUPPORTED(cudaOccupancyMaxActiveBlocksPerMultiprocessor)
UNSUPPORTED(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
UNSUPPORTED(cudaProfilerStart)
UNSUPPORTED(cudaProfilerStop)
UNSUPPORTED(cudaStreamBeginCaptureToGraph)
UNSUPPORTED(cudaStreamUpdateCaptureDependencies)
UNSUPPORTED(cudaUserObjectCreate)
UNSUPPORTED(cudaUserObjectRelease)
