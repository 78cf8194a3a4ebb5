// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "export.h"
#include "swap/disk_store.h"
#include "swap/host_pool.h"

namespace torchlms {

class LowerTiers;

// The bytes of one storage away from its device: a block of the host tier, or an extent on the disk.
// write and read move a part between it and the device's memory and block until that is done; parts that
// do not overlap may move at the same time. Must not outlive its tiers.
class TierCopy {
 public:
  TierCopy(LowerTiers& tiers, HostBlock block) : tiers_(tiers), block_(std::move(block)) {}
  TierCopy(LowerTiers& tiers, DiskExtent extent) : tiers_(tiers), extent_(std::move(extent)) {}

  Tier tier() const {
    return block_ ? Tier::kHost : Tier::kDisk;
  }
  // `offset` as for DiskStore. Throw DiskError, and what the device says of a failed copy.
  void write(Bytes offset, const void* data, Bytes size);
  void read(Bytes offset, void* data, Bytes size);

 private:
  LowerTiers& tiers_;
  HostBlock block_;
  DiskExtent extent_;
};

// Where storages go when they leave the device: host memory, where the device has memory of its own, and
// below it the disk. Thread-safe.
class TORCHLMS_EXPORT LowerTiers {
 public:
  struct HostOptions {
    Bytes budget_bytes = 0; // 0: no host tier
    bool pins = true;
  };

  // disk: may be null where there is a host tier.
  LowerTiers(Device& device, std::unique_ptr<DiskStore> disk, HostOptions host);

  // The fastest tier that has room; null when none has and there is no disk. Throws DiskError.
  std::shared_ptr<TierCopy> allocate(Bytes size);

  DiskStore* disk() {
    return disk_.get();
  }
  HostPool& host() {
    return host_;
  }

 private:
  friend class TierCopy;
  HostBlock take_staging(Bytes size);

  Device& device_;
  const std::unique_ptr<DiskStore> disk_;
  HostPool host_;
  HostPool staging_; // between a device's own memory and the disk: a chunk for each thread of the link
};

} // namespace torchlms
