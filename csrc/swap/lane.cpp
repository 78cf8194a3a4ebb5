// SPDX-License-Identifier: BSD-3-Clause
#include "swap/lane.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <utility>

namespace torchlms {
namespace {

// Ctrl-C and the like must reach the application's threads. Faults stay with the thread that made
// them, so that a crash reaches its handler.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) {
      sigdelset(&all, fault);
    }
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() {
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

Bytes whole_blocks(Bytes size) {
  return (std::min(size, Bytes{1} << 40) + 4095) / 4096 * 4096;
}

// What `call` threw, or null.
template <class F>
std::exception_ptr run_unlocked(std::unique_lock<std::mutex>& lock, const F& call) {
  lock.unlock();
  std::exception_ptr error;
  try {
    call();
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  return error;
}

} // namespace

Lane::Lane(const Link::Options& options, Clock::time_point epoch)
    : num_threads_(static_cast<size_t>(options.credits) + 1),
      chunk_bytes_(Pacer(options.limit_bytes_per_s).chunk_bytes(whole_blocks(options.chunk_bytes))),
      queue_(std::chrono::microseconds(options.ageing_us)),
      pacer_(options.limit_bytes_per_s),
      meter_(epoch) {}

void Lane::submit(const Link::TransferPtr& transfer) {
  const Lock lock(mutex_);
  if (!stopping_) {
    start_threads(); // may throw: nothing is queued yet
  }
  const auto now = Clock::now();
  transfer->submitted_at = now;
  transfer->sequence = next_sequence_++;
  transfer->stopped = stopping_ && transfer->size > 0;
  if (!transfer->in_queue()) {
    ending_.push_back(transfer);
  } else {
    if (queue_.empty()) {
      pacer_.restart(now);
    }
    queue_.push(transfer, now);
  }
  changed_.notify_all();
}

void Lane::promote(const Link::TransferPtr& transfer, TransferClass cls) {
  const Lock lock(mutex_);
  if (cls >= transfer->cls) {
    return;
  }
  transfer->late = transfer->late || cls == TransferClass::kDemand;
  if (transfer->in_queue()) {
    queue_.promote(transfer, cls, Clock::now());
    changed_.notify_all();
  }
}

bool Lane::cancel(const Link::TransferPtr& transfer) {
  const Lock lock(mutex_);
  if (transfer->in_queue()) {
    halt(transfer);
    changed_.notify_all();
  }
  return transfer->stopped && !transfer->all_started();
}

void Lane::stop() {
  const Lock lock(mutex_);
  stopping_ = true;
  while (!queue_.empty()) {
    halt(queue_.next(Clock::now()));
  }
  changed_.notify_all();
}

void Lane::join() {
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

bool Lane::end_one() {
  Lock lock(mutex_);
  if (ending_.empty()) {
    return false;
  }
  Link::TransferPtr transfer = std::move(ending_.front());
  ending_.pop_front();
  end(lock, std::move(transfer));
  return true;
}

// Requires: mutex_ is held. A thread that could not be made is tried again at the next submit.
void Lane::start_threads() {
  if (threads_.size() == num_threads_) {
    return;
  }
  const SignalsBlocked inherited_by_the_threads;
  threads_.reserve(num_threads_);
  while (threads_.size() < num_threads_) {
    const bool only_demand = threads_.size() == num_threads_ - 1;
    threads_.emplace_back([this, only_demand] { run(only_demand); });
  }
}

void Lane::run(bool only_demand) {
  pthread_setname_np(pthread_self(), "torchlms-link");
  Lock lock(mutex_);
  while (true) {
    if (!ending_.empty()) {
      Link::TransferPtr transfer = std::move(ending_.front());
      ending_.pop_front();
      end(lock, std::move(transfer));
    } else if (stopping_) {
      return;
    } else if (only_demand ? !queue_.has_demand() : queue_.empty()) {
      changed_.wait(lock);
    } else if (const auto now = Clock::now(); now < pacer_.next_start()) {
      changed_.wait_until(lock, pacer_.next_start()); // then choose anew: a more urgent one may have come
    } else {
      run_chunk(lock, only_demand ? queue_.next_demand() : queue_.next(now), now);
    }
  }
}

void Lane::run_chunk(Lock& lock, Link::TransferPtr transfer, Clock::time_point now) {
  const Bytes offset = transfer->started_bytes;
  const Bytes size = std::min(chunk_bytes_, transfer->size - offset);
  if (offset + size == transfer->size) {
    queue_.erase(transfer);
  }
  transfer->started_bytes += size;
  ++transfer->chunks_in_flight;
  std::exception_ptr error;
  if (transfer->ready) {
    error = run_unlocked(lock, [&] { transfer->ready(); });
    now = Clock::now();
  }
  if (offset == 0) {
    transfer->started_at = now;
  }
  meter_.chunk_started(*transfer, now, offset == 0);
  const auto not_before = pacer_.charge(now, size);
  if (!error) {
    error = run_unlocked(lock, [&] { transfer->chunk(offset, size); });
  }

  // A chunk that was faster than the limit ends when the limit allows, as on a slower link.
  while (!error && !stopping_ && Clock::now() < not_before) {
    changed_.wait_until(lock, not_before);
  }
  --transfer->chunks_in_flight;
  transfer->moved_bytes += error ? 0 : size;
  meter_.chunk_ended(Clock::now(), error ? 0 : size);
  if (error && !transfer->error) {
    transfer->error = error;
    if (transfer->in_queue()) {
      queue_.erase(transfer);
      transfer->stopped = true;
    }
  }
  if (!transfer->in_queue() && transfer->chunks_in_flight == 0) {
    end(lock, std::move(transfer));
  }
}

// Requires: mutex_ is held; the transfer is in the queue. Queued or Running to Draining or Ending.
void Lane::halt(const Link::TransferPtr& transfer) {
  queue_.erase(transfer);
  transfer->stopped = true;
  if (transfer->chunks_in_flight == 0) {
    ending_.push_back(transfer);
  }
}

// Requires: `lock` is held; it is held again on return. Draining or Ending to Ended.
void Lane::end(Lock& lock, Link::TransferPtr transfer) {
  if (transfer->started_bytes > 0) {
    meter_.transfer_ended(*transfer, Clock::now());
  }
  const std::exception_ptr error = std::exchange(transfer->error, nullptr);
  const bool complete = !error && transfer->all_started();
  // The caller may keep the transfer; what the callbacks hold is released here, without the lock.
  Link::ChunkFn chunk = std::exchange(transfer->chunk, nullptr);
  Link::DoneFn done = std::exchange(transfer->done, nullptr);
  Link::ReadyFn ready = std::exchange(transfer->ready, nullptr);
  transfer.reset();
  lock.unlock();
  chunk = nullptr;
  ready = nullptr;
  done(complete, error);
  done = nullptr;
  lock.lock();
}

LinkStats Lane::stats() const {
  const Lock lock(mutex_);
  return meter_.stats(Clock::now());
}

void Lane::reset_stats() {
  const Lock lock(mutex_);
  meter_.reset(Clock::now());
}

std::vector<TransferRecord> Lane::take_records() {
  const Lock lock(mutex_);
  return meter_.take_records();
}

} // namespace torchlms
