// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace torchlms {

using Bytes = int64_t;

// Dense indices into a Trace, in order of first appearance; -1 means none.
using OpId = int32_t;
using ValueId = int32_t;
using StorageId = int32_t;
using EventId = int32_t;
inline constexpr int32_t kNone = -1;

// A place with capacity and speed.
enum class Tier : uint8_t { kDevice, kHost, kDisk };

// What the user's policy function demands for what an op made.
enum class Demand : uint8_t { kNone, kSave, kRecompute, kSwap };

// Where the bytes of one storage are now.
enum class Residency : uint8_t { kDevice, kSwappingOut, kSwappedOut, kSwappingIn, kDropped };

} // namespace torchlms
