// SPDX-License-Identifier: BSD-3-Clause
#include "swap/link.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

#include "swap/lane.h"

namespace torchlms {
namespace {

// Note [The link]
// Copy engines and disks serve first in, first out, so urgency must come from withholding work: each
// direction (a Lane) keeps its transfers in a TransferQueue and runs one chunk per thread. `credits`
// threads serve every class; one more serves kDemand alone, so that a waiting op finds a free thread
// although bulk chunks are in flight. A thread decides what to run at the last moment, after the
// pacing wait and the end of its chunk before, under the lane's mutex; chunk and done run with no lock
// held. done of a transfer that ends with a chunk runs on the thread of that chunk.
//
// A transfer's states, all moved under the lane's mutex:
//
//   state    in queue  in flight  leaves to             moved by
//   Queued   yes       0          Running               the thread that starts its first chunk
//                                 Ending                cancel, the destructor
//   Running  yes       any        Draining              the thread that starts its last chunk;
//                                                       the thread whose chunk threw; cancel, the
//                                                       destructor
//                                 Ending                cancel or the destructor between two chunks
//   Draining no        > 0        Ended                 the thread whose chunk is the last to end
//   Ending   no        0          Ended                 any thread of the lane, from ending_
//   Ended    no        0          -                     done is called by the thread that moved it
//
// An empty transfer starts in Ending. After the destructor has begun a callback may still submit: such
// a transfer goes to Ending at once, and the destructor's thread ends it when the lane has no threads
// any more. The destructor must not run on a link thread: it joins them.

const Link::Options& checked(const Link::Options& options) {
  if (options.chunk_bytes < 1 || options.credits < 1) {
    throw std::invalid_argument(
        "a link needs chunk_bytes and credits of at least 1, got " + std::to_string(options.chunk_bytes) +
        " and " + std::to_string(options.credits));
  }
  return options;
}

} // namespace

struct Link::Impl {
  explicit Impl(const Options& options) : out(options, epoch), in(options, epoch) {}

  Lane& lane(Direction direction) {
    return direction == Direction::kOut ? out : in;
  }

  const Lane::Clock::time_point epoch = Lane::Clock::now();
  const pid_t owner = ::getpid();
  Lane out;
  Lane in;
};

Link::Link(Options options) : impl_(std::make_unique<Impl>(checked(options))) {}

Link::~Link() {
  if (::getpid() != impl_->owner) {
    // A forked child has none of the threads and cannot join them: leaked.
    static_cast<void>(impl_.release());
    return;
  }
  impl_->out.stop();
  impl_->in.stop();
  impl_->out.join();
  impl_->in.join();
  while (impl_->out.end_one() || impl_->in.end_one()) {
  }
}

Link::TransferPtr Link::submit(
    Direction direction, TransferClass cls, Bytes size, ChunkFn chunk, DoneFn done, ReadyFn ready) {
  if (size < 0) {
    throw std::invalid_argument("a transfer of " + std::to_string(size) + " bytes");
  }
  auto transfer = std::make_shared<Transfer>();
  transfer->direction = direction;
  transfer->size = size;
  transfer->chunk = std::move(chunk);
  transfer->done = std::move(done);
  transfer->ready = std::move(ready);
  transfer->cls = cls;
  transfer->late = cls == TransferClass::kDemand;
  impl_->lane(direction).submit(transfer);
  return transfer;
}

void Link::promote(const TransferPtr& transfer, TransferClass cls) {
  impl_->lane(transfer->direction).promote(transfer, cls);
}

bool Link::cancel(const TransferPtr& transfer) {
  return impl_->lane(transfer->direction).cancel(transfer);
}

LinkStats Link::stats(Direction direction) const {
  return impl_->lane(direction).stats();
}

void Link::reset_stats() {
  impl_->out.reset_stats();
  impl_->in.reset_stats();
}

std::vector<TransferRecord> Link::take_records() {
  const std::vector<TransferRecord> out = impl_->out.take_records();
  const std::vector<TransferRecord> in = impl_->in.take_records();
  std::vector<TransferRecord> records;
  records.reserve(out.size() + in.size());
  std::merge(
      out.begin(),
      out.end(),
      in.begin(),
      in.end(),
      std::back_inserter(records),
      [](const auto& a, const auto& b) { return a.end_us < b.end_us; });
  const size_t excess = records.size() - std::min(records.size(), LinkMeter::kMaxRecords);
  records.erase(records.begin(), records.begin() + static_cast<std::ptrdiff_t>(excess));
  return records;
}

int64_t Link::now_us() const {
  return std::chrono::duration_cast<std::chrono::microseconds>(Lane::Clock::now() - impl_->epoch).count();
}

} // namespace torchlms
