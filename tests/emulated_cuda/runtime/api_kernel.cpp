// SPDX-License-Identifier: BSD-3-Clause
// Kernels. None can run here: their names are learnt as libraries register them, and a launch ends the
// process with the name, since a kernel that silently did nothing would leave garbage in its output.
#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <unordered_map>

#include "api.h"

namespace {

std::unordered_map<const void*, const char*>& kernel_names() {
  static auto& names = *new std::unordered_map<const void*, const char*>;
  return names;
}

[[noreturn]] cudaError_t refuse(const void* kernel) {
  const auto found = kernel_names().find(kernel);
  const char* name = found == kernel_names().end() ? "an unknown kernel" : found->second;
  int status = 0;
  char* readable = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::fprintf(stderr, "emulated_cuda: a real kernel was launched: %s\n", status == 0 ? readable : name);
  std::abort();
}

} // namespace

EMULATED_API void** __cudaRegisterFatBinary(void* binary) {
  return static_cast<void**>(binary);
}

EMULATED_API void __cudaRegisterFatBinaryEnd(void**) {}

EMULATED_API void __cudaUnregisterFatBinary(void**) {}

EMULATED_API char __cudaInitModule(void**) {
  return 0;
}

EMULATED_API void __cudaRegisterFunction(
    void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
  kernel_names()[host] = name;
}

EMULATED_API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

EMULATED_API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}

EMULATED_API unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, cudaStream_t) {
  return 0;
}

EMULATED_API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = *block = dim3{1, 1, 1};
  *shared = 0;
  *static_cast<cudaStream_t*>(stream) = nullptr;
  return cudaSuccess;
}

EMULATED_API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  refuse(kernel);
}

EMULATED_API cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  refuse(kernel);
}

EMULATED_API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* kernel, void**) {
  refuse(kernel);
}

EMULATED_API cudaError_t
cudaLaunchCooperativeKernel(const void* kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  refuse(kernel);
}

EMULATED_API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
