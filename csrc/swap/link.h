// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "export.h"
#include "trace/types.h"

namespace torchlms {

enum class Direction : uint8_t { kOut, kIn };

// In order of urgency. Within a class the earlier submission goes first, which is the planned order.
enum class TransferClass : uint8_t { kDemand, kPrefetch, kEvict, kBackground };

// What the link knows of one direction since the last reset. Times in microseconds.
struct LinkStats {
  Bytes bytes = 0;
  double busy_us = 0; // at least one chunk in flight
  int64_t num_transfers = 0;
  int64_t num_late = 0; // submitted or promoted to kDemand: somebody waited
  double wait_us_p50 = 0; // submission to first chunk
  double wait_us_p99 = 0;
};

// One use of the link, for pictures: microseconds on the steady clock since the link was made.
struct TransferRecord {
  Direction direction = Direction::kOut;
  int64_t start_us = 0;
  int64_t end_us = 0;
  Bytes bytes = 0;
};

// The scarce link between tiers. Every transfer is cut into chunks; at most `credits` chunks per
// direction are in flight, so that a more urgent transfer waits for one chunk, not for a queue; one
// more credit per direction is reserved for kDemand. See Note [The link] in link.cpp.
//
// Thread-safe. Threads start at the first submit. Callbacks run on the link's threads with no lock
// held; they may call submit, promote and cancel. The destructor cancels what is queued, waits for
// the chunks in flight, and calls each outstanding done callback; it must not run on a link thread.
class TORCHLMS_EXPORT Link {
 public:
  struct Options {
    Bytes chunk_bytes = Bytes{4} << 20;
    int credits = 2;
    double limit_bytes_per_s = 0; // per direction; 0 = no limit
    // A class that has had no chunk for so long gets one out of turn, at most one in eight. Raised:
    // urgent transfers are held up less, and the others may starve longer.
    int64_t ageing_us = 500'000;
  };
  // Moves bytes [offset, offset + size) of the transfer. May throw; then no further chunk starts.
  using ChunkFn = std::function<void(Bytes offset, Bytes size)>;
  // Called exactly once, after the last chunk in flight has ended; must not throw. `error` is what a chunk threw, or
  // null. `complete` is false when the transfer failed or was cancelled before its last chunk began.
  using DoneFn = std::function<void(bool complete, std::exception_ptr error)>;

  // Called before the first chunk, and maybe before others: blocks until the bytes may be moved. May throw as ChunkFn.
  // The time it takes is no time of the link's.
  using ReadyFn = std::function<void()>;

  class Transfer; // opaque
  using TransferPtr = std::shared_ptr<Transfer>;

  explicit Link(Options options);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  TransferPtr submit(
      Direction direction,
      TransferClass cls,
      Bytes size,
      ChunkFn chunk,
      DoneFn done,
      ReadyFn ready = nullptr);
  // Makes a transfer more urgent. No effect once all of its chunks have started.
  void promote(const TransferPtr& transfer, TransferClass cls);
  // Starts no further chunk; done still runs (on a link thread). False when all chunks had started.
  bool cancel(const TransferPtr& transfer);

  LinkStats stats(Direction direction) const;
  void reset_stats();
  // The transfers that ended since the last call, at most 16384 of them.
  std::vector<TransferRecord> take_records();
  int64_t now_us() const; // the clock of TransferRecord

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace torchlms
