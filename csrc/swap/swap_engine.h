// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Storage.h>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "swap/device.h"
#include "swap/link.h"
#include "swap/lower_tiers.h"
#include "swap/stall_timer.h"
#include "trace/types.h"

namespace torchlms {

class SwapEngine;

// One storage at one epoch of its data, and where its bytes are. Owns exactly one c10::Storage (never
// a Tensor: see core rules in docs/threading.md). Shared by the handles that autograd keeps; freed
// memory is given back when SwapEngine::discard is called, not when this object dies.
class StorageState {
 public:
  StorageState(c10::Storage storage, Bytes size_bytes, int64_t order, bool is_managed);

  // Constant after construction.
  const Bytes size_bytes; // what the device's allocator holds for it
  const Bytes storage_bytes; // nbytes() of the storage
  const int64_t order; // packs are numbered; backward asks for the highest numbers first
  const bool is_managed; // may be moved, and is in the device's managed bytes while resident

 private:
  friend class SwapEngine;
  // Guarded by SwapEngine::mutex_.
  c10::Storage device_copy_;
  Residency residency_ = Residency::kDevice;
  std::shared_ptr<TierCopy> copy_; // holds the bytes unless they exist on the device only
  Link::TransferPtr transfer_; // in kSwappingOut and kSwappingIn
  bool was_swapped_ = false;
  bool was_dropped_ = false;
  bool is_pinned_ = false; // never move again
  bool is_discarded_ = false;
  int num_waiting_ = 0; // threads in acquire that wait for it to arrive
  std::exception_ptr read_error_;
};
using StorageStatePtr = std::shared_ptr<StorageState>;

// Moves single storages between the device and the tiers below it, as told; knows no policy but the order of
// eviction under pressure. See Note [Swap engine] in the source for the table of states.
//
// Thread-safe. Waiting calls release no GIL: callers do. Lock order: Tape, SwapEngine, then Link or
// the device's allocator. Reads and writes run on the link's threads.
// On failure to write, the device copy stays and the error is kept for rethrow_error(); on failure to
// read, acquire() throws and the bytes stay where they are.
class TORCHLMS_EXPORT SwapEngine {
 public:
  // Called about every 50 ms while acquire waits; may throw to give up waiting.
  using InterruptFn = std::function<void()>;

  SwapEngine(
      Device& device,
      std::unique_ptr<DiskStore> disk,
      Link::Options link,
      LowerTiers::HostOptions host = LowerTiers::HostOptions());
  ~SwapEngine();

  // Takes charge of `storage`, which stays on the device.
  StorageStatePtr adopt(c10::Storage storage, Bytes size_bytes, bool is_managed);
  // Ours is the only reference: nobody can read, write or free the bytes but through us.
  bool is_sole_owner(const StorageStatePtr& state) const;
  bool was_swapped(const StorageStatePtr& state) const;
  bool was_dropped(const StorageStatePtr& state) const;
  Residency residency(const StorageStatePtr& state) const;
  // Never moves it again (the caller found another owner that cannot be seen).
  void pin(const StorageStatePtr& state);

  // Starts the copy to a lower tier; the block is freed when the copy is complete. False, and nothing
  // happens, unless the storage is managed, resident, and ours alone.
  bool swap_out(const StorageStatePtr& state);
  // Starts bringing it back, if it is swapped out and the budget has room without reclaiming
  // anything. False when it has none.
  bool try_swap_in(const StorageStatePtr& state);
  // The bytes, on the device: waits for a copy in flight, fetches what was swapped out. Throws DiskError
  // or c10::OutOfMemoryError. Requires: not dropped.
  c10::Storage acquire(const StorageStatePtr& state, const InterruptFn& interrupt = nullptr);
  // Frees the block without a copy: the caller can make the bytes again. False, and nothing happens,
  // where swap_out would do nothing.
  bool drop(const StorageStatePtr& state);
  // Takes the bytes that were made again. Without effect when nobody wants them any more. Requires: it
  // was dropped and not restored since, by this thread or under a lock of the caller's.
  void restore(const StorageStatePtr& state, c10::Storage storage);
  // Waits until a copy out that is in flight has ended and its block is free.
  void wait_swapped_out(const StorageStatePtr& state);
  void wait_all_swapped_out();
  // Nobody will ask for the bytes again: frees them wherever they are.
  void discard(const StorageStatePtr& state);

  // Frees device memory by evicting what backward needs last; waits for one copy at least. False
  // when nothing is left to evict. The device's ReclaimFn.
  bool reclaim(Bytes needed);
  // Starts swap-outs, needed-last first, until held minus in flight is at most `target`. No wait.
  void relieve(Bytes target);

  // Throws the first write error since the last call, if any.
  void rethrow_error();
  std::exception_ptr error() const;

  struct Stats {
    Bytes swapped_out_bytes = 0;
    Bytes written_to_disk_bytes = 0; // of these
    Bytes swapped_in_bytes = 0;
    int64_t num_evictions = 0; // swap-outs forced by allocations
  };
  Stats stats() const;
  // Time that threads have waited in acquire, reclaim and the waits above.
  double stall_us() const {
    return stalls_.sum_us();
  }
  const StallLog& stalls() const {
    return stalls_;
  }
  Link& link() {
    return *link_;
  }
  LowerTiers& tiers() {
    return tiers_;
  }
  DiskStore& store() { // requires: there is a disk tier
    return *tiers_.disk();
  }
  Device& device() {
    return device_;
  }

 private:
  using Lock = std::unique_lock<std::mutex>;
  bool may_leave(const StorageState& state) const;
  bool start_swap_out(const StorageStatePtr& state, TransferClass cls);
  void finish_swap_out(const StorageStatePtr& state, bool complete, std::exception_ptr error);
  bool start_swap_in(const StorageStatePtr& state, TransferClass cls);
  void finish_swap_in(const StorageStatePtr& state, bool complete, std::exception_ptr error);
  void free_device_copy(Lock& lock, const StorageStatePtr& state);
  void cancel_prefetches(Bytes enough);
  void end_move();

  Device& device_;
  LowerTiers tiers_;

  mutable std::mutex mutex_;
  std::condition_variable changed_; // any residency changed
  // Guarded by mutex_: evictable candidates by order, on the device or swapping out.
  std::map<int64_t, StorageStatePtr> resident_;
  std::map<int64_t, StorageStatePtr> arriving_; // swapping in, by order
  int64_t next_order_ = 0;
  Bytes out_in_flight_ = 0;
  int num_moves_ = 0; // copies and frees that have not ended
  uint64_t num_ended_moves_ = 0; // tells waiters that trying again makes sense
  std::exception_ptr write_error_;
  Stats stats_;

  StallLog stalls_; // own synchronisation

  std::unique_ptr<Link> link_; // last: its threads use all of the above
};

} // namespace torchlms
