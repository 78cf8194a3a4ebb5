// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "clock.h"
#include "runtime/stream.h"

// Finds accesses that nothing orders, from what was queued and not from how it happened to run. All of
// the host is one actor, whose calls happen in the order in which they are made: races between host
// threads are for the thread sanitizer. Every function does nothing unless the knob is on.
namespace emulated_cuda::race {

// Work was queued; returns the stream's clock with it. Reports races.
VectorClock queued(uint64_t stream, const Work& work);
// Later work of the stream comes after what the clock stands for.
void ordered_after(uint64_t stream, const VectorClock& clock);
// The host knows that this has happened: an event, or all that the stream was given.
void host_knows(const VectorClock& clock);
void host_knows_stream(uint64_t stream);
VectorClock clock_of(uint64_t stream);

// A block of PyTorch's caching allocator.
void block_allocated(const char* begin, uint64_t bytes);
void block_freed(const char* begin, uint64_t bytes);
// Memory of the runtime appeared or vanished.
void memory_changed(const char* begin, uint64_t bytes);

// Pinned memory with a second mapping through which the device works, so that the host's can be closed.
void guard_pinned(char* begin, uint64_t bytes);
void unguard_pinned(char* begin);

} // namespace emulated_cuda::race
