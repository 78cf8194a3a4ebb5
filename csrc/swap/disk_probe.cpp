// SPDX-License-Identifier: BSD-3-Clause
#include "swap/disk_probe.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>

namespace torchlms {

namespace {

double bytes_per_s(Link& link, Direction direction, Bytes size, const Link::ChunkFn& chunk) {
  std::promise<void> ended;
  const auto start = std::chrono::steady_clock::now();
  link.submit(direction, TransferClass::kDemand, size, chunk, [&](bool, std::exception_ptr error) {
    if (error) {
      ended.set_exception(std::move(error));
    } else {
      ended.set_value();
    }
  });
  ended.get_future().get();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return static_cast<double>(size) / elapsed.count();
}

} // namespace

DiskSpeed measure_disk(DiskStore& store, Link& link, Bytes size) {
  const DiskExtent extent = store.allocate(size);
  const std::unique_ptr<void, decltype(&std::free)> buffer(
      std::aligned_alloc(DiskStore::kAlignment, static_cast<size_t>(extent.size())), &std::free);
  std::fill_n(static_cast<char*>(buffer.get()), extent.size(), 1);
  DiskSpeed speed;
  speed.out_bytes_per_s = bytes_per_s(link, Direction::kOut, size, [&](Bytes offset, Bytes chunk) {
    store.write(extent, offset, static_cast<const char*>(buffer.get()) + offset, chunk);
  });
  speed.in_bytes_per_s = bytes_per_s(link, Direction::kIn, size, [&](Bytes offset, Bytes chunk) {
    store.read(extent, offset, static_cast<char*>(buffer.get()) + offset, chunk);
  });
  return speed;
}

} // namespace torchlms
