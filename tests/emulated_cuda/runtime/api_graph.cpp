// SPDX-License-Identifier: BSD-3-Clause
// Capture of streams into graphs, and their replay.
#include <atomic>
#include <map>
#include <mutex>

#include "api.h"
#include "stream.h"

using namespace emulated_cuda;

namespace {

std::mutex graphs_mutex;

std::map<const Graph*, std::shared_ptr<Graph>>& graphs() {
  static auto& all = *new std::map<const Graph*, std::shared_ptr<Graph>>;
  return all;
}

std::shared_ptr<Graph> graph_of(const void* handle) {
  std::lock_guard lock(graphs_mutex);
  const auto found = graphs().find(static_cast<const Graph*>(handle));
  return found == graphs().end() ? nullptr : found->second;
}

cudaStreamCaptureStatus status_of(const std::shared_ptr<Graph>& graph) {
  if (!graph)
    return cudaStreamCaptureStatusNone;
  return graph->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

} // namespace

EMULATED_API cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
  static std::atomic<uint64_t> captures{0};
  const auto stream = stream_of(handle);
  REQUIRE(stream, cudaErrorInvalidResourceHandle);
  REQUIRE(handle != nullptr && !stream->capture(), cudaErrorStreamCaptureUnsupported);
  auto graph = std::make_shared<Graph>();
  graph->id = ++captures;
  graph->origin = stream.get();
  stream->set_capture(std::move(graph));
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* result) {
  *result = nullptr;
  const auto stream = stream_of(handle);
  REQUIRE(stream, cudaErrorInvalidResourceHandle);
  const auto graph = stream->capture();
  REQUIRE(graph && graph->origin == stream.get(), cudaErrorIllegalState);
  end_capture(graph);
  REQUIRE(!graph->invalid, cudaErrorStreamCaptureInvalidated);
  std::lock_guard lock(graphs_mutex);
  graphs()[graph.get()] = graph;
  *result = reinterpret_cast<cudaGraph_t>(graph.get());
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  const auto stream = stream_of(handle);
  REQUIRE(stream, cudaErrorInvalidResourceHandle);
  *status = status_of(stream->capture());
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t handle,
    cudaStreamCaptureStatus* status,
    unsigned long long* id,
    cudaGraph_t* result,
    const cudaGraphNode_t** dependencies,
    const cudaGraphEdgeData** edges,
    size_t* count) {
  const auto stream = stream_of(handle);
  REQUIRE(stream, cudaErrorInvalidResourceHandle);
  const auto graph = stream->capture();
  *status = status_of(graph);
  if (id != nullptr)
    *id = graph ? graph->id : 0;
  if (result != nullptr)
    *result = reinterpret_cast<cudaGraph_t>(graph.get());
  if (dependencies != nullptr)
    *dependencies = nullptr;
  if (edges != nullptr)
    *edges = nullptr;
  if (count != nullptr)
    *count = 0;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, size_t* count) {
  const auto graph = graph_of(handle);
  REQUIRE(graph && nodes == nullptr, cudaErrorInvalidValue);
  *count = graph->work.size();
  return cudaSuccess;
}

EMULATED_API cudaError_t
cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t handle, unsigned long long) {
  const auto graph = graph_of(handle);
  REQUIRE(graph, cudaErrorInvalidValue);
  auto copy = std::make_shared<Graph>();
  copy->work = graph->work;
  std::lock_guard lock(graphs_mutex);
  graphs()[copy.get()] = copy;
  *executable = reinterpret_cast<cudaGraphExec_t>(copy.get());
  return cudaSuccess;
}

EMULATED_API cudaError_t
cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t handle, unsigned long long flags) {
  return cudaGraphInstantiate(executable, handle, flags);
}

EMULATED_API cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
  const auto graph = graph_of(handle);
  const auto stream = stream_of(stream_handle);
  REQUIRE(graph && stream, cudaErrorInvalidResourceHandle);
  for (Work work : graph->work) {
    work.replayed = true;
    stream->submit(std::move(work));
  }
  return device_error();
}

EMULATED_API cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
  std::lock_guard lock(graphs_mutex);
  return graphs().erase(reinterpret_cast<const Graph*>(handle)) == 1 ? cudaSuccess
                                                                     : failed(cudaErrorInvalidValue);
}

EMULATED_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  return cudaGraphDestroy(reinterpret_cast<cudaGraph_t>(handle));
}
