// SPDX-License-Identifier: BSD-3-Clause
// Streams and events.
#include "api.h"
#include "event.h"
#include "stream.h"

using namespace emulated_cuda;

EMULATED_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  FAIL_AS_ASKED(cudaErrorMemoryAllocation);
  *stream = handle_of(create_stream(current_device(), priority));
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

EMULATED_API cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

EMULATED_API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return destroy_stream(stream) ? cudaSuccess : failed(cudaErrorInvalidResourceHandle);
}

EMULATED_API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  const auto stream = stream_of(handle);
  REQUIRE(stream, cudaErrorInvalidResourceHandle);
  *priority = stream->priority();
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const auto stream = stream_of(handle);
  REQUIRE(stream, cudaErrorInvalidResourceHandle);
  stream->synchronize();
  return device_error();
}

EMULATED_API cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const auto stream = stream_of(handle);
  REQUIRE(stream, cudaErrorInvalidResourceHandle);
  return stream->idle() ? device_error() : cudaErrorNotReady;
}

EMULATED_API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
  const auto stream = stream_of(handle);
  const auto event = event_of(event_handle);
  REQUIRE(stream && event, cudaErrorInvalidResourceHandle);
  event->wait_on(*stream);
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* argument) {
  FAIL_AS_ASKED(cudaErrorUnknown);
  const auto stream = stream_of(handle);
  REQUIRE(stream, cudaErrorInvalidResourceHandle);
  stream->submit({"host function", [=] { function(argument); }});
  return cudaSuccess;
}

EMULATED_API cudaError_t
cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void* argument, unsigned) {
  const auto stream = stream_of(handle);
  REQUIRE(stream, cudaErrorInvalidResourceHandle);
  stream->submit({"host function", [=] { function(handle, cudaSuccess, argument); }});
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  FAIL_AS_ASKED(cudaErrorMemoryAllocation);
  *event = create_event((flags & cudaEventDisableTiming) == 0);
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

EMULATED_API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return destroy_event(event) ? cudaSuccess : failed(cudaErrorInvalidResourceHandle);
}

EMULATED_API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event_handle, cudaStream_t handle, unsigned) {
  FAIL_AS_ASKED(cudaErrorUnknown);
  const auto stream = stream_of(handle);
  const auto event = event_of(event_handle);
  REQUIRE(stream && event, cudaErrorInvalidResourceHandle);
  event->record(*stream);
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  return cudaEventRecordWithFlags(event, handle, 0);
}

EMULATED_API cudaError_t cudaEventQuery(cudaEvent_t handle) {
  const auto event = event_of(handle);
  REQUIRE(event, cudaErrorInvalidResourceHandle);
  return event->done() ? device_error() : cudaErrorNotReady;
}

EMULATED_API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  const auto event = event_of(handle);
  REQUIRE(event, cudaErrorInvalidResourceHandle);
  event->synchronize();
  return device_error();
}

EMULATED_API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  const auto from = event_of(start);
  const auto to = event_of(end);
  REQUIRE(from && to, cudaErrorInvalidResourceHandle);
  const cudaError_t error = to->elapsed_since(*from, *ms);
  return error == cudaErrorNotReady ? error : failed(error);
}

EMULATED_API cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t,
    cudaStreamCaptureStatus* status,
    unsigned long long* id,
    cudaGraph_t*,
    const cudaGraphNode_t**,
    const cudaGraphEdgeData**,
    size_t*) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr)
    *id = 0;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}
