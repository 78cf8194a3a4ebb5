// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <functional>
#include <memory>
#include <string>

#include "export.h"
#include "trace/types.h"

namespace torchlms {

// Called on the allocating thread, with no allocator lock held, when `needed` more bytes do not fit
// the budget. Returns true when it freed something or waited for something to be freed (the
// allocation is tried again), false when there is nothing left. Must not allocate device memory.
using ReclaimFn = std::function<bool(Bytes needed)>;

// Called after reclaim gave up; returns the text of the out-of-memory error's last sentence (what
// holds the memory and what to change). May throw instead.
using DescribeFn = std::function<std::string(Bytes requested)>;

// A point in the work that a device has been given and may not have done yet.
class Fence {
 public:
  virtual ~Fence() = default;
  // Blocks until all of it is done. Throws what the device says of work that failed.
  virtual void wait() const = 0;
};
using FencePtr = std::shared_ptr<const Fence>; // null: nothing is pending

// When the device came to a point of its work, on its own clock.
class Moment {
 public:
  virtual ~Moment() = default;
  // Blocks until the device has come to both. Requires: of the same device.
  virtual double us_since(const Moment& earlier) const = 0;
};
using MomentPtr = std::shared_ptr<const Moment>; // null: the host's clock tells

// The seam to one device: its memory, its budget, what it holds, and how bytes leave it. Thread-safe.
// Devices live for the whole process and are never destroyed. What follows the budget is for devices
// that have memory of their own and work through queues; the defaults are a CPU's.
class TORCHLMS_EXPORT Device {
 public:
  virtual ~Device() = default;

  virtual c10::DeviceType type() const = 0;
  // As tensors name it.
  virtual c10::Device device() const {
    return c10::Device(type());
  }
  virtual Bytes total_bytes() const = 0; // size of the device's memory that a process may use
  virtual Bytes available_bytes() const = 0; // free now, what this process has cached included

  virtual c10::Allocator* allocator() = 0;
  // On this device, whichever is the thread's current one.
  virtual c10::DataPtr allocate(Bytes size) {
    return allocator()->allocate(static_cast<size_t>(size));
  }
  // Memory within the budget without reclaiming anything, or a null DataPtr.
  virtual c10::DataPtr try_allocate(Bytes size) = 0;
  // A block that the allocator handed out: what it holds for it, and its number in the order of all
  // allocations. bytes is 0 for memory from elsewhere.
  struct Block {
    Bytes bytes = 0;
    uint64_t serial = 0;
  };
  virtual Block block_of(const void* data) const = 0;
  virtual uint64_t next_serial() const = 0; // that the next allocation will get, at least

  virtual Bytes held_bytes() const = 0;
  virtual Bytes cached_bytes() const { // freed, and kept from the system
    return 0;
  }
  virtual void release_cached() {} // to the system, where keeping it may leave memory fragmented
  // Adds `delta` to the bytes that belong to managed storages (see Event); held - managed is base.
  virtual void add_managed_bytes(Bytes delta) = 0;
  virtual Bytes managed_bytes() const = 0;
  // Highest held bytes, and highest held - managed bytes, since the last call; starts anew.
  struct Peaks {
    Bytes held = 0;
    Bytes base = 0;
  };
  virtual Peaks take_peaks() = 0;

  // Every later allocation keeps held + cached bytes at most `budget`, reclaiming when it would not.
  virtual void set_budget(Bytes budget, ReclaimFn reclaim, DescribeFn describe) = 0;
  virtual void clear_budget() = 0; // counting goes on

  // Threads may read and write its memory.
  virtual bool is_host_memory() const {
    return true;
  }
  // What this thread's queue, and every queue that was noted for the block, has been given so far.
  virtual FencePtr fence(const void* /*block*/) {
    return nullptr;
  }
  // Of what this thread's queue has been given so far.
  virtual MomentPtr moment() {
    return nullptr;
  }
  // This thread's queue works on the block.
  virtual void note_use(const void* /*block*/) {}
  // The same of a block that torchlms allocated, maybe for another queue: it must not be reused before
  // this thread's queue is done with it.
  virtual void share(const c10::DataPtr& /*block*/) {}
  // Between this device's memory and the host's; block the calling thread until the bytes are there.
  virtual void copy_out(void* host, const void* block, Bytes size);
  virtual void copy_in(void* block, const void* host, Bytes size);
  // Host memory that copies reach fastest, or null when there is no more of it.
  virtual void* allocate_pinned(Bytes /*size*/) {
    return nullptr;
  }
  virtual void free_pinned(void* /*data*/) {}
  // Bytes of the budget that allocations could not use because memory was fragmented, the most so far.
  virtual Bytes wasted_bytes() const {
    return 0;
  }
  // This thread's queue is being recorded for later, not run: nothing may be moved or waited for.
  virtual bool is_capturing() const {
    return false;
  }
};

// That device. Throws c10::Error when this build, or this machine, has none such.
TORCHLMS_EXPORT Device& device_for(c10::Device device);
// Null instead.
TORCHLMS_EXPORT Device* find_device(c10::Device device);
// Called once per type, before main or at import: how to find its devices. `find` may return null.
TORCHLMS_EXPORT void register_devices(c10::DeviceType type, Device* (*find)(c10::DeviceIndex));
// Of a type that has only one.
TORCHLMS_EXPORT void register_device(Device* device);

} // namespace torchlms
