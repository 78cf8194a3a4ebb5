// SPDX-License-Identifier: BSD-3-Clause
#include "swap/link_probe.h"

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
  const auto done = [&](bool, std::exception_ptr error) {
    if (error) {
      ended.set_exception(std::move(error));
    } else {
      ended.set_value();
    }
  };
  link.submit(direction, TransferClass::kDemand, size, chunk, done);
  ended.get_future().get();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return static_cast<double>(size) / elapsed.count();
}

} // namespace

LinkSpeed measure_disk(DiskStore& store, Link& link, Bytes size) {
  const DiskExtent extent = store.allocate(size);
  const std::unique_ptr<void, decltype(&std::free)> buffer(
      std::aligned_alloc(DiskStore::kAlignment, static_cast<size_t>(extent.size())), &std::free);
  std::fill_n(static_cast<char*>(buffer.get()), extent.size(), 1);
  LinkSpeed speed;
  speed.out_bytes_per_s = bytes_per_s(link, Direction::kOut, size, [&](Bytes offset, Bytes chunk) {
    store.write(extent, offset, static_cast<const char*>(buffer.get()) + offset, chunk);
  });
  speed.in_bytes_per_s = bytes_per_s(link, Direction::kIn, size, [&](Bytes offset, Bytes chunk) {
    store.read(extent, offset, static_cast<char*>(buffer.get()) + offset, chunk);
  });
  return speed;
}

std::optional<LinkSpeed> measure_host(SwapEngine& engine, Bytes size) {
  Device& device = engine.device();
  size = std::min(size, engine.tiers().host().budget_bytes());
  if (size == 0) {
    return std::nullopt;
  }
  HostPool pool(device, 2 * size, engine.tiers().host().pins()); // of its own: the step's use is reported
  const c10::DataPtr block = device.try_allocate(size);
  const HostBlock host = pool.try_allocate(size);
  if (!block || !host) {
    return std::nullopt;
  }
  // The first round touches the memory and wakes the threads.
  LinkSpeed speed;
  for (int round = 0; round < 2; ++round) {
    if (const FencePtr before = device.fence(block.get())) {
      before->wait();
    }
    speed.out_bytes_per_s = bytes_per_s(engine.link(), Direction::kOut, size, [&](Bytes offset, Bytes chunk) {
      device.copy_out(host.data() + offset, static_cast<const char*>(block.get()) + offset, chunk);
    });
    speed.in_bytes_per_s = bytes_per_s(engine.link(), Direction::kIn, size, [&](Bytes offset, Bytes chunk) {
      device.copy_in(static_cast<char*>(block.get()) + offset, host.data() + offset, chunk);
    });
  }
  return speed;
}

} // namespace torchlms
