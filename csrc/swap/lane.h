// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "swap/link.h"
#include "swap/link_meter.h"
#include "swap/pacer.h"
#include "swap/transfer_queue.h"

namespace torchlms {

// One direction of a link: its queue and the threads that serve it. See Note [The link].
//
// Thread-safe. Owns its threads, which start at the first submit; stop() and join() must be called
// before it is destroyed. Callbacks run with no lock held.
class Lane {
 public:
  using Clock = std::chrono::steady_clock;

  Lane(const Link::Options& options, Clock::time_point epoch);

  void submit(const Link::TransferPtr& transfer);
  void promote(const Link::TransferPtr& transfer, TransferClass cls);
  bool cancel(const Link::TransferPtr& transfer);
  // Starts no further chunk, of what is queued or comes later.
  void stop();
  // Requires: stop() was called; the caller is no thread of the link.
  void join();
  // Calls done for one transfer that waits for it. False when there is none.
  bool end_one();

  LinkStats stats() const;
  void reset_stats();
  std::vector<TransferRecord> take_records();

 private:
  using Lock = std::unique_lock<std::mutex>;

  void start_threads();
  void run(bool only_demand);
  void run_chunk(Lock& lock, Link::TransferPtr transfer, Clock::time_point now);
  void halt(const Link::TransferPtr& transfer);
  void end(Lock& lock, Link::TransferPtr transfer);

  // Constant after construction.
  const size_t num_threads_;
  const Bytes chunk_bytes_;

  // Guarded by mutex_; threads_ is joined without it, after stopping_ keeps it from changing.
  mutable std::mutex mutex_;
  std::condition_variable changed_; // the queue, ending_, stopping_
  TransferQueue queue_;
  std::deque<Link::TransferPtr> ending_;
  Pacer pacer_;
  LinkMeter meter_;
  int64_t next_sequence_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

} // namespace torchlms
