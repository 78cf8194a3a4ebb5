// SPDX-License-Identifier: BSD-3-Clause
// Copies and fills.
#include <cstring>
#include <memory>
#include <vector>

#include "api.h"
#include "counters.h"
#include "link.h"
#include "memory.h"
#include "stream.h"

using namespace emulated_cuda;

namespace {

bool kind_fits(cudaMemcpyKind kind, const Place& to, const Place& from) {
  const bool to_device = to.where == Where::kDevice;
  const bool from_device = from.where == Where::kDevice;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    default:
      return kind == cudaMemcpyDefault;
  }
}

bool inside(const Place& place, const char* begin, uint64_t bytes) {
  return place.where == Where::kPageable || begin + bytes <= place.begin + place.bytes;
}

void count(const Place& to, const Place& from, uint64_t bytes) {
  auto& c = counters();
  if (to.where == Where::kDevice && from.where == Where::kDevice) {
    c.d2d_bytes += bytes;
    c.d2d_copies++;
  } else if (to.where == Where::kDevice) {
    c.h2d_bytes += bytes;
    c.h2d_copies++;
  } else if (from.where == Where::kDevice) {
    c.d2h_bytes += bytes;
    c.d2h_copies++;
  }
}

// Pageable memory is staged, as on a real device: a copy from it has read it when the call returns, and
// a copy to it is complete then. So nothing later can be in conflict with either, and since nobody sees what the
// host does with pageable memory, nothing is remembered of its content.
cudaError_t copy(char* to, const char* from, uint64_t bytes, cudaMemcpyKind kind, Stream& stream) {
  const Place to_place = place_of(to);
  const Place from_place = place_of(from);
  REQUIRE(kind_fits(kind, to_place, from_place), cudaErrorInvalidValue);
  REQUIRE(inside(to_place, to, bytes) && inside(from_place, from, bytes), cudaErrorInvalidValue);
  count(to_place, from_place, bytes);
  Work work;
  if (from_place.where != Where::kPageable)
    work.accesses.push_back({from, bytes, false});
  if (to_place.where != Where::kPageable)
    work.accesses.push_back({to, bytes, true});
  to = to_place.view;
  from = from_place.view;
  if (to_place.where == Where::kDevice && from_place.where == Where::kDevice) {
    work.name = "copy on the device";
    work.run = [=] { std::memmove(to, from, bytes); };
  } else if (to_place.where == Where::kDevice) {
    work.name = "copy to the device";
    std::shared_ptr<std::vector<char>> staged;
    if (from_place.where == Where::kPageable)
      staged = std::make_shared<std::vector<char>>(from, from + bytes);
    work.run = [=, device = to_place.device] {
      carry(device, Direction::kToDevice, to, staged ? staged->data() : from, bytes);
    };
  } else if (from_place.where == Where::kDevice) {
    work.name = "copy to the host";
    work.run = [=, device = from_place.device] { carry(device, Direction::kToHost, to, from, bytes); };
  } else {
    work.name = "copy on the host";
    work.run = [=] { std::memmove(to, from, bytes); };
  }
  stream.submit(std::move(work));
  if (to_place.where == Where::kPageable)
    stream.synchronize();
  return device_error();
}

} // namespace

EMULATED_API cudaError_t
cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t handle) {
  FAIL_AS_ASKED(cudaErrorUnknown);
  const auto stream = stream_of(handle);
  REQUIRE(stream, cudaErrorInvalidResourceHandle);
  if (bytes == 0)
    return cudaSuccess;
  return copy(static_cast<char*>(to), static_cast<const char*>(from), bytes, kind, *stream);
}

EMULATED_API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  if (error != cudaSuccess)
    return error;
  stream_of(nullptr)->synchronize();
  return device_error();
}

EMULATED_API cudaError_t
cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t handle) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, handle);
}

EMULATED_API cudaError_t cudaMemcpy2DAsync(
    void* to,
    size_t to_pitch,
    const void* from,
    size_t from_pitch,
    size_t width,
    size_t height,
    cudaMemcpyKind kind,
    cudaStream_t handle) {
  for (size_t row = 0; row < height; row++) {
    const cudaError_t error = cudaMemcpyAsync(
        static_cast<char*>(to) + row * to_pitch,
        static_cast<const char*>(from) + row * from_pitch,
        width,
        kind,
        handle);
    if (error != cudaSuccess)
      return error;
  }
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t handle) {
  FAIL_AS_ASKED(cudaErrorUnknown);
  const auto stream = stream_of(handle);
  REQUIRE(stream, cudaErrorInvalidResourceHandle);
  char* begin = static_cast<char*>(to);
  REQUIRE(inside(place_of(begin), begin, bytes), cudaErrorInvalidValue);
  stream->submit({"fill", [=] { std::memset(begin, value, bytes); }, {{begin, bytes, true}}});
  return device_error();
}

EMULATED_API cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}
