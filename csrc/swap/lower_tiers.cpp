// SPDX-License-Identifier: BSD-3-Clause
#include "swap/lower_tiers.h"

#include <cerrno>
#include <limits>
#include <utility>

namespace torchlms {

void TierCopy::write(Bytes offset, const void* data, Bytes size) {
  if (block_) {
    tiers_.device_.copy_out(block_.data() + offset, data, size);
  } else if (tiers_.device_.is_host_memory()) {
    tiers_.disk_->write(extent_, offset, data, size);
  } else {
    const HostBlock staging = tiers_.take_staging(size);
    tiers_.device_.copy_out(staging.data(), data, size);
    tiers_.disk_->write(extent_, offset, staging.data(), size);
  }
}

void TierCopy::read(Bytes offset, void* data, Bytes size) {
  if (block_) {
    tiers_.device_.copy_in(data, block_.data() + offset, size);
  } else if (tiers_.device_.is_host_memory()) {
    tiers_.disk_->read(extent_, offset, data, size);
  } else {
    const HostBlock staging = tiers_.take_staging(size);
    tiers_.disk_->read(extent_, offset, staging.data(), size);
    tiers_.device_.copy_in(data, staging.data(), size);
  }
}

LowerTiers::LowerTiers(Device& device, std::unique_ptr<DiskStore> disk, HostOptions host)
    : device_(device),
      disk_(std::move(disk)),
      host_(device, device.is_host_memory() ? 0 : host.budget_bytes, host.pins),
      staging_(device, std::numeric_limits<Bytes>::max() / 2, host.pins) {}

std::shared_ptr<TierCopy> LowerTiers::allocate(Bytes size) {
  if (HostBlock block = host_.try_allocate(size)) {
    return std::make_shared<TierCopy>(*this, std::move(block));
  }
  return disk_ ? std::make_shared<TierCopy>(*this, disk_->allocate(size)) : nullptr;
}

HostBlock LowerTiers::take_staging(Bytes size) {
  HostBlock staging = staging_.try_allocate(size);
  if (!staging) {
    throw DiskError(ENOMEM, "torchlms: no host memory for a buffer between the device and the disk");
  }
  return staging;
}

} // namespace torchlms
