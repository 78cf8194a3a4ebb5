// SPDX-License-Identifier: BSD-3-Clause
// Streams and events.
#include "api.h"
#include "event.h"
#include "race/detector.h"
#include "stream.h"

using namespace emulated_cuda;

namespace {

// The host cannot wait for work that is not going to run.
bool spoils_capture(Stream& stream) {
  const auto graph = stream.capture();
  if (graph)
    graph->invalid = true;
  return graph != nullptr;
}

// Once it runs, the host may learn from it that the work before it is done.
void submit_host_function(Stream& stream, std::function<void()> function) {
  stream.submit({"host function", [clock = race::clock_of(stream.index()), function = std::move(function)] {
                   race::host_knows(clock);
                   function();
                 }});
}

} // namespace

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
  REQUIRE(!spoils_capture(*stream), cudaErrorStreamCaptureUnsupported);
  stream->synchronize();
  return device_error();
}

EMULATED_API cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const auto stream = stream_of(handle);
  REQUIRE(stream, cudaErrorInvalidResourceHandle);
  REQUIRE(!spoils_capture(*stream), cudaErrorStreamCaptureUnsupported);
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
  submit_host_function(*stream, [=] { function(argument); });
  return cudaSuccess;
}

EMULATED_API cudaError_t
cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void* argument, unsigned) {
  const auto stream = stream_of(handle);
  REQUIRE(stream, cudaErrorInvalidResourceHandle);
  submit_host_function(*stream, [=] { function(handle, cudaSuccess, argument); });
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
