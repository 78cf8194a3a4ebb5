// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>
#include <functional>

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

// The seam to one kind of device: its memory, its budget, what it holds. Thread-safe. Devices live
// for the whole process and are never destroyed.
class Device {
 public:
  virtual ~Device() = default;

  virtual c10::DeviceType type() const = 0;
  virtual Bytes total_bytes() const = 0; // size of the device's memory that a process may use
  virtual Bytes available_bytes() const = 0; // free now, what this process has cached included

  virtual c10::Allocator* allocator() = 0;
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
};

// The device of that type. Throws c10::Error when this build has none.
TORCHLMS_EXPORT Device& device_for(c10::DeviceType type);
// Called once per type, before main or at import.
void register_device(Device* device);

} // namespace torchlms
