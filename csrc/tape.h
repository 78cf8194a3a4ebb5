// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "device_times.h"
#include "export.h"
#include "packed.h"
#include "program.h"
#include "recompute/op_record_fwd.h"
#include "swap/swap_engine.h"
#include "trace/recorder.h"

namespace torchlms {

class Session;

// An operator as the observer knows it.
struct OpName {
  std::string name; // "aten::convolution"
  uint64_t signature = 0;
  std::shared_ptr<const OperatorTraits> traits; // unless the dispatcher does not know it
};

// An op that has started and not ended. Reused, so that steady state allocates nothing.
struct OpFrame {
  const OpName* op = nullptr;
  bool has_inner = false; // contained another op above autograd: a composite, not recorded
  OpId first_op = 0; // recorded from its start on
  uint64_t signature = 0;
  std::chrono::steady_clock::time_point start;
  double start_stall_us = 0; // its allocations may wait for the link, which is no time of its own
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::vector<ValueId> written; // at first the arguments that it writes, as they were before
  bool is_replayable = false;
  std::shared_ptr<OpRecord> record; // where the plan may want to run it again
  std::vector<c10::IValue> arguments; // only where a policy function is to be asked
  Demand demand = Demand::kNone; // its answer
};

// How a dropped storage is made again. Immutable.
struct Rebuild {
  const Region* region = nullptr; // in the program
  ProgramPtr program;
  std::vector<OpRecordPtr> records; // by position in Region::ops

  size_t last_made(StorageId id) const; // position of the last op that made it or wrote it
};

// One entry of a scope (one forward) and the backwards through it: it writes the trace, follows the
// program if the step is a known one, and reacts to memory pressure if not.
//
// Thread-safety: op_started, op_ended, pack and end_forward belong to the scope's thread; unpack and
// handle_died may come from any thread at any time. Owned by the open scope and by every Packed.
// Allocates no device memory under its lock, but through Device::try_allocate.
class TORCHLMS_EXPORT Tape : public std::enable_shared_from_this<Tape> {
 public:
  enum class Mode : uint8_t {
    kReactive, // unknown program: swap out when held bytes approach the budget
    kFollowing, // a plan applies
    kWatching, // a plan that moves nothing: no hooks, shapes are checked only
  };

  // candidates: known programs, most recent first. records: see every pack, even where a plan that
  // moves nothing would do without.
  Tape(std::shared_ptr<Session> session, std::vector<ProgramPtr> candidates, bool records);
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  Mode mode() const;
  Session& session() const {
    return *session_;
  }

  // An op above autograd starts. False when the step left a watched program: from now on the caller
  // must install hooks and report the ends of ops too.
  bool op_started(OpFrame& frame, c10::ArrayRef<const c10::IValue> inputs);
  // ... has returned. Not for composites nor failed ops.
  void op_ended(OpFrame& frame, const std::vector<c10::IValue>& outputs);

  // Whether an op that contained others, or returned nothing, wrote an argument by itself: autograd copies
  // what some in-place ops overwrite, and that copy is an op too.
  bool wrote_itself(const OpFrame& frame) const;

  // An op that is no part of the trace (gradients are off) writes the arguments that `traits` says.
  void note_unseen_write(const OperatorTraits& traits, c10::ArrayRef<const c10::IValue> inputs);

  // Takes a share in the tensor's storage. Null when it is not a kind of tensor that torchlms
  // handles (not_planned is counted): the caller keeps such a tensor itself.
  std::unique_ptr<Packed> pack(const at::Tensor& tensor, bool keep);
  // The tensor's storage shall never be moved in this step.
  void keep(const at::Tensor& tensor);
  void count_not_planned(const char* reason);

  // The scope was left: from here on there are unpacks and frees only, as far as we see.
  void end_forward();
  // The forward pass is over, its graph is alive, and nothing was unpacked.
  bool awaits_backward() const;
  // The step ended with handles alive (retain_graph): what was recorded so far is the step.
  void finish_step();

  // The device records this thread's work instead of doing it (a CUDA graph): true, counted, and from here on
  // the step is unknown.
  bool is_captured();

  // For Packed.
  c10::Storage unpack(StorageId id, const StorageStatePtr& state, const SwapEngine::InterruptFn& interrupt);
  bool is_ready(StorageId id) const;
  bool has_other_readers(StorageId id, const c10::Storage& storage) const;
  void handle_died(StorageId id);

  // When a storage was made again. Wall times in microseconds since scope entry.
  struct ReplayRecord {
    double start_us = 0;
    double end_us = 0;
    Bytes bytes = 0;
  };
  // What the session learns when a step ends.
  struct Outcome {
    Trace trace;
    std::vector<uint64_t> geometry;
    ProgramPtr followed; // the program that the whole step followed, or null
    bool is_complete = false; // every op and pack was seen
    bool was_watched = false; // no pack was
    Bytes kept_bytes = 0;
    Bytes swapped_bytes = 0;
    Bytes recomputed_bytes = 0;
    Bytes deduplicated_bytes = 0;
    double step_us = 0; // neither waiting for the link nor replaying
    double stall_us = 0;
    double recompute_us = 0;
    std::map<std::string, int64_t> not_planned;
    std::vector<ReplayRecord> replays; // in their order
    std::vector<std::pair<double, Bytes>> memory; // per event: wall time, highest held since the last
    int64_t link_start_us = 0; // of the scope entry on the link's clock
    double forward_us = 0;
    std::optional<DeviceTimes> device_times; // read by Session::learn, since that waits for the device
  };

 private:
  // Told apart by version and place, not by TensorImpl: a view that the program makes anew may or may not get
  // the address of the one before it.
  struct KnownValue {
    c10::VariableVersion counter;
    uint32_t version;
    Bytes offset;
    Bytes size;
    ValueId id;
  };
  struct Slot {
    explicit Slot(c10::weak_intrusive_ptr<c10::StorageImpl> storage) : storage(std::move(storage)) {}

    c10::weak_intrusive_ptr<c10::StorageImpl> storage; // keeps the address from being reused
    StorageStatePtr state; // set at the first pack, cleared when nobody wants the bytes any more
    int num_handles = 0;
    int num_needs = 0; // dropped storages whose replays read this one; see Note [Needs]
    c10::Storage held; // for them, when autograd did not save it
    std::shared_ptr<Rebuild> rebuild; // set while it is dropped
    bool is_root = false; // was alive at scope entry
    bool is_dead = false; // the program dropped it
    bool was_freed = false; // its last handle died
    bool is_kept = false; // by the user's wish
    bool was_swapped = false;
    bool was_dropped = false;
    OpId last_written = kNone; // by that op
    bool is_opaque = false; // written by something that is no op of the trace
    bool is_scratch = false; // verify: kernels write it when they like, as batch norm does its statistics
    Bytes size_bytes = 0;
    Bytes packed_bytes = 0;
    std::optional<uint64_t> checksum; // verify: of all bytes, at the end of the op that saved it last
    std::vector<KnownValue> values;
  };
  using States = c10::SmallVector<StorageStatePtr, 4>;
  // What is freed once mutex_ is.
  struct Doomed {
    std::vector<StorageStatePtr> states;
    std::vector<c10::Storage> storages;
  };

  bool is_plain(const at::Tensor& tensor) const;
  StorageId id_of(const at::Tensor& tensor);
  ValueId value_of(const at::Tensor& tensor, OpId producer);
  bool has_version(StorageId id, uint32_t version) const; // some value of the storage is known at it

  // All below: mutex_ held.
  double now_us() const;
  void add_event(EventKind kind, StorageId id);
  void sample_memory(Bytes* base, Bytes* base_peak);
  void take_checksums();
  void poll_deaths(States& to_wait);
  void died(StorageId id, States& to_wait);
  void collect(Program::Ids ids, States& states) const;
  void follow(uint64_t prefix);
  void leave_program(const char* where);
  bool watch();
  void begin_backward();
  void switch_to(ProgramPtr program);
  void prefetch_planned();
  void prefetch_reactive(StorageId current);
  bool swap_in_now(StorageId id);
  void read_arguments(OpFrame& frame, c10::ArrayRef<const c10::IValue> inputs);
  void find_written(OpFrame& frame);
  void record_ends();
  void capture(OpFrame& frame, c10::ArrayRef<const c10::IValue> inputs);
  void drop(StorageId id);
  std::shared_ptr<Rebuild> rebuild_of(StorageId id);
  std::vector<StorageId> dropped_closure(StorageId id) const;
  void add_readers(StorageId leaf, std::vector<StorageId>& readers) const;
  void release_need(StorageId id, Doomed& doomed);
  void release_if_unwanted(StorageId id, Doomed& doomed);
  void release_idle(Doomed& doomed);
  bool is_over() const;
  Outcome take_outcome();
  uint64_t checksum(const c10::Storage& storage) const;

  // mutex_ not held.
  void rebuild(StorageId id, const SwapEngine::InterruptFn& interrupt);
  void rebuild_one(StorageId id, const SwapEngine::InterruptFn& interrupt);
  void rebuild_before_write(const std::vector<StorageId>& readers);
  void replay(const Rebuild& rebuild, Storages& storages) const;
  void discard(const Doomed& doomed);
  void note_device_time(void (DeviceTimes::*what)());

  const std::shared_ptr<Session> session_;
  SwapEngine& engine_;
  Device& device_;
  const std::chrono::steady_clock::time_point start_;
  const double start_stall_us_;
  const int64_t start_link_us_;
  const uint64_t start_serial_; // blocks with a smaller serial were alive at scope entry

  std::mutex replay_mutex_; // one replay at a time; taken before mutex_
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  Mode mode_ = Mode::kReactive;
  std::vector<ProgramPtr> candidates_;
  ProgramPtr program_; // the one that is followed or watched
  Recorder recorder_;
  DeviceTimes device_times_;
  std::vector<Slot> slots_;
  ska::flat_hash_map<const c10::StorageImpl*, StorageId> ids_;
  std::vector<StorageId> awaiting_death_;
  std::vector<StorageId> to_checksum_; // verify: packed since the last op ended
  std::vector<uint64_t> geometry_;
  uint64_t running_geometry_ = 0;
  uint64_t running_packs_ = 0;
  size_t num_started_ = 0;
  int32_t num_ops_ = 0;
  int32_t num_unpacks_ = 0;
  int32_t num_forward_unpacks_ = 0; // of them, before the forward pass ended
  int num_handles_ = 0;
  bool is_partial_ = false; // some ops or packs were not seen
  bool left_program_ = false;
  bool forward_ended_ = false;
  bool is_finished_ = false;
  double forward_us_ = 0;
  double last_event_us_ = 0;
  double recompute_us_ = 0;
  Bytes replay_peak_ = 0; // held during replays since the last event
  ska::flat_hash_map<OpId, OpRecordPtr> records_; // of this forward pass
  std::deque<StorageId> pending_swap_ins_; // planned prefetches that found no memory yet
  std::vector<StorageId> packed_order_; // managed storages as they were packed
  size_t prefetch_cursor_ = 0; // reactive prefetch: backward has come down to here in packed_order_
  Bytes prefetch_window_ = Bytes{8} << 20; // doubles when a swap-in is late, shrinks when it is not
  Bytes largest_bytes_ = 0; // of a managed storage
  std::map<std::string, int64_t> not_planned_;
  std::vector<ReplayRecord> replays_;
  std::vector<std::pair<double, Bytes>> memory_; // per event
};
using TapePtr = std::shared_ptr<Tape>;

} // namespace torchlms
