// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace emulated_cuda {

enum class Direction { kToDevice, kToHost };

// Runs on a stream's thread. Copies, and returns no sooner than the device's link in that direction,
// which takes one copy at a time in order of arrival, would have carried the bytes.
void carry(int device, Direction direction, char* to, const char* from, uint64_t bytes);

// How long the links in that direction would have been busy with what they carried so far.
uint64_t busy_ns(Direction direction);

} // namespace emulated_cuda
