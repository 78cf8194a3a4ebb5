// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <chrono>
#include <set>

#include "swap/link.h"

namespace torchlms {

// One transfer. See Note [The link] for its states and who moves it between them.
class Link::Transfer {
 public:
  using Clock = std::chrono::steady_clock;

  bool all_started() const {
    return started_bytes == size;
  }
  bool in_queue() const {
    return !stopped && !all_started();
  }

  // Constant after submit.
  Direction direction = Direction::kOut;
  int64_t sequence = 0; // order of submission
  Bytes size = 0;
  Clock::time_point submitted_at;
  ChunkFn chunk; // called by several threads at once; dropped when the transfer ends
  DoneFn done;
  ReadyFn ready; // as chunk; null: at once

  // Guarded by the lock of the direction.
  TransferClass cls = TransferClass::kDemand;
  bool late = false; // was kDemand at some time
  bool stopped = false; // cancelled or failed: no further chunk starts
  Bytes started_bytes = 0; // chunks start in order of offset
  Bytes moved_bytes = 0;
  int chunks_in_flight = 0;
  Clock::time_point started_at; // first chunk
  std::exception_ptr error; // what the first failing chunk threw
};

// The transfers of one direction that have chunks left to start, most urgent first: by class, then
// submission. So that no class starves, the one that has waited longest gets a chunk
// out of turn, at most one in eight, once it has had none for `ageing`.
//
// Not thread-safe: guarded by the lock of the direction.
class TransferQueue {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kTurnsBetweenAged = 7;

  explicit TransferQueue(Clock::duration ageing) : ageing_(ageing) {}

  void push(const Link::TransferPtr& transfer, Clock::time_point now);
  void erase(const Link::TransferPtr& transfer);
  // Requires: the transfer is in the queue.
  void promote(const Link::TransferPtr& transfer, TransferClass cls, Clock::time_point now);

  bool empty() const;
  bool has_demand() const {
    return !lists_.front().transfers.empty();
  }
  // The transfer whose chunk is to start now; it stays in the queue. Requires: not empty.
  Link::TransferPtr next(Clock::time_point now);
  // The same among kDemand alone. Requires: has_demand().
  Link::TransferPtr next_demand() const {
    return *lists_.front().transfers.begin();
  }

 private:
  struct MoreUrgent {
    bool operator()(const Link::TransferPtr& a, const Link::TransferPtr& b) const;
  };
  struct List {
    std::set<Link::TransferPtr, MoreUrgent> transfers;
    Clock::time_point waiting_since; // since when non-empty and without a turn
  };

  List& list_of(TransferClass cls) {
    return lists_[static_cast<size_t>(cls)];
  }
  List* aged_list(List* first, Clock::time_point now);

  const Clock::duration ageing_;

  std::array<List, 4> lists_; // by TransferClass
  int64_t turns_since_aged_ = kTurnsBetweenAged;
};

} // namespace torchlms
