// SPDX-License-Identifier: BSD-3-Clause
#include "queue.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/cuda/EmptyTensor.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdio>

#include "footprint.h"
#include "runtime/failure.h"
#include "runtime/stream.h"

namespace emulated_cuda {
namespace {

void compute_unobserved(const std::function<void()>& compute, int threads) {
  at::AutoDispatchBelowADInplaceOrView below;
  at::DisableRecordFunctionGuard unobserved;
  if (at::get_num_threads() != threads)
    at::set_num_threads(threads);
  compute();
}

void submit(
    c10::DeviceIndex device,
    const std::string& name,
    const Footprint& footprint,
    bool needed,
    std::function<void()> run) {
  const c10::cuda::CUDAGuard guard(device); // the handle of a default stream says no device
  const auto stream = stream_of(c10::cuda::getCurrentCUDAStream(device).stream());
  stream->submit(
      {.name = name,
       .run = std::move(run),
       .accesses = accesses_of(footprint),
       .compute = true,
       .needed = needed,
       .cost = {footprint.flops, bytes_of(footprint)}});
}

} // namespace

void enqueue(
    c10::DeviceIndex device,
    const std::string& name,
    const Footprint& footprint,
    std::function<void()> compute) {
  submit(
      device, name, footprint, false, [name, compute = std::move(compute), threads = at::get_num_threads()] {
        try {
          compute_unobserved(compute, threads);
        } catch (const std::exception& error) {
          std::fprintf(stderr, "emulated_cuda: %s failed on the device: %s\n", name.c_str(), error.what());
          break_device(cudaErrorAssert);
        }
      });
}

void enqueue_and_wait(
    c10::DeviceIndex device,
    const std::string& name,
    const Footprint& footprint,
    std::function<void()> compute) {
  std::exception_ptr error;
  submit(device, name, footprint, true, [&error, &compute, threads = at::get_num_threads()] {
    try {
      compute_unobserved(compute, threads);
    } catch (...) {
      error = std::current_exception();
    }
  });
  const c10::cuda::CUDAGuard guard(device);
  C10_CUDA_CHECK(cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream(device).stream()));
  if (error)
    std::rethrow_exception(error);
}

at::Tensor empty_on(c10::DeviceIndex device, const at::Tensor& like) {
  return at::detail::empty_strided_cuda(
      like.sizes(), like.strides(), like.scalar_type(), c10::Device(c10::DeviceType::CUDA, device));
}

} // namespace emulated_cuda
