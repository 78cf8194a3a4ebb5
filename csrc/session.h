// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "export.h"
#include "feedback.h"
#include "plan/cost_file.h"
#include "plan/cost_model.h"
#include "program.h"
#include "report.h"
#include "step_times.h"
#include "swap/swap_engine.h"
#include "tape.h"

namespace torchlms {

enum class Policy : uint8_t { kAuto, kSwap, kRecompute, kHybrid, kOff };
TORCHLMS_EXPORT const char* to_string(Policy policy);

// The user's policy function: what it demands for the outputs of an op that has returned. May throw.
using DemandFn = std::function<Demand(
    const OpName& op, const std::vector<c10::IValue>& arguments, const std::vector<c10::IValue>& outputs)>;

struct SessionOptions {
  std::string name; // for messages: the settings as the user wrote them
  c10::Device device = c10::kCPU;
  Policy policy = Policy::kAuto;
  DemandFn demand_of; // binds the policy; empty: nothing is demanded
  Bytes budget_bytes = 0; // 0: as little as possible
  Bytes host_budget_bytes = 0; // of host memory for copies, where the device has memory of its own
  bool pin_memory = true; // page-locked
  std::string disk_path; // folder of the disk tier; empty: none
  Bytes disk_budget_bytes = 0; // 0: 0.8 of what is free
  double link_limit_bytes_per_s = 0; // per direction; 0: none
  Bytes min_offload_bytes = Bytes{1} << 20; // smaller storages are never moved
  bool verify = false; // checksum every saved storage
};

// The budget is below what the program needs at one of its ops, whatever is moved.
class TORCHLMS_EXPORT BudgetError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Joins recorder, planner and executors for one set of options: opens a tape per scope, turns the
// steps that tapes recorded into programs with plans, and holds the device's budget.
//
// Thread-safe. Owned by its creator and by every tape, so it outlives the graphs it serves. Locks:
// Tape, then Session, then SwapEngine; never the GIL. At most one session holds a device.
class TORCHLMS_EXPORT Session : public std::enable_shared_from_this<Session> {
 public:
  // Throws DiskError when the disk tier cannot be set up, std::invalid_argument for a bad TORCHLMS_COSTS.
  static std::shared_ptr<Session> create(SessionOptions options);
  ~Session();

  // Enters a scope: takes the device, plans what has been recorded, and hands out the tape. Throws
  // BudgetError; c10::ValueError when another session with live saved tensors holds the device.
  TapePtr open_tape();
  // Leaves it.
  void close_tape(const TapePtr& tape);
  // Joins the passes until the next call into one step (gradient accumulation).
  void step_boundary();

  const SessionOptions& options() const {
    return options_;
  }
  SwapEngine& engine() {
    return *engine_;
  }
  bool is_off() const {
    return options_.policy == Policy::kOff;
  }
  bool holds_minimum() const {
    return options_.budget_bytes == 0;
  }
  Bytes budget_bytes() const; // as it applies now: "min" is the floor once that is known
  bool is_busy() const; // an open scope or live saved tensors
  bool wants_plan() const; // the next scope entry will make one

  // Objects through which the user can still use this session. Without any, and when it is not busy,
  // the budget ends at the first allocation that would not fit.
  void add_user();
  void remove_user();

  Report report();
  std::string timeline_json();
  ProgramPtr latest_program(); // the plan of the step that ran last, or null
  std::shared_ptr<const Trace> latest_trace();
  // Makes `program` the one to be followed. Steps that differ raise c10::ValueError.
  void load(ProgramPtr program);

  // Messages for the log since the last call: level as in Python's logging, text.
  std::vector<std::pair<int, std::string>> take_log();

  // Name of the op or autograd node that runs on this thread, for messages; "" when unknown. The
  // frontend that observes ops provides it.
  static std::string current_operation();
  static void set_operation_namer(std::string (*namer)());
  // Throws a disk error out of an allocation in the form that the frontend can pass through ops.
  static void set_disk_error_thrower(void (*thrower)(const DiskError&));

  // Asks the policy function, as ops cannot throw: what it throws comes out of the next rethrow_*error(), and
  // until then it is asked no more.
  Demand demand_of(
      const OpName& op, const std::vector<c10::IValue>& arguments, const std::vector<c10::IValue>& outputs);
  void rethrow_demand_error();
  // Throws what went wrong since the last call, in the policy function or in a transfer.
  void rethrow_error();

  // For Tape.
  void note_peak(Bytes held);
  void note_external(const c10::Storage& storage);
  void program_changed(const char* where, int32_t op);
  void relieve(Bytes margin);
  void step_finished(Tape::Outcome outcome);

 private:
  explicit Session(SessionOptions options);
  void take_device();
  void apply_budget();
  bool reclaim(Bytes needed);
  std::string describe(Bytes requested);
  const char* policy_name() const;
  std::string where_the_rest_is() const;
  bool finish_open_steps(); // whether a forward pass has had no backward yet

  // All below in session_steps.cpp; mutex_ held.
  void learn_all();
  void learn(Tape::Outcome& outcome);
  void learn_costs();
  void measure_link();
  void warn_pageable();
  struct Learnt;
  Learnt& learnt(const Trace& trace);
  Feedback::Next note_followed(const Tape::Outcome& outcome);
  void note_times(Tape::Outcome& outcome);
  void publish(const Tape::Outcome& outcome);
  void publish_off_step();
  void plan(Bytes entry_bytes);
  ProgramPtr make_program(Trace trace, std::vector<uint64_t> geometry, Bytes entry_bytes, PlanPolicy policy);
  void check_fits(const Program& program) const;
  void remember(ProgramPtr program);
  void log(int level, std::string text);

  const SessionOptions options_;
  const std::optional<CostFile> given_costs_; // in place of what is measured
  Device& device_;
  std::unique_ptr<SwapEngine> engine_;
  std::atomic<int> num_open_{0};
  std::atomic<int> num_users_{0};
  std::atomic<Bytes> step_peak_{0}; // since the last scope entry
  std::atomic<Bytes> minimum_bytes_{0}; // what "min" came to; 0: not known yet
  std::atomic<Bytes> external_bytes_{0};

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::exception_ptr demand_error_;
  std::vector<std::weak_ptr<Tape>> tapes_; // with an open scope or live handles
  std::vector<Tape::Outcome> finished_; // steps nobody has learnt from yet
  struct Recorded {
    Trace trace;
    std::vector<uint64_t> geometry;
    bool tries_others = false; // the plan that it followed was slow
  };
  std::vector<Recorded> recorded_; // steps that want a plan at the next scope entry
  std::vector<ProgramPtr> programs_; // most recent first
  bool has_loaded_plan_ = false; // from a file: steps must follow it
  bool records_next_ = false; // the last step left a watched program: hooks on, whatever is planned
  bool passes_overlap_ = false; // forwards before one backward: what fits alone may not fit together
  bool warned_changed_ = false;
  bool warned_pageable_ = false;
  std::string broken_plan_; // where the step left a loaded plan; raised at the next scope entry
  CostModel costs_;
  bool knows_out_cost_ = false;
  bool knows_in_cost_ = false;
  struct Learnt { // of the steps of one program
    Feedback feedback;
    StepTimes times = {};
    ProgramPtr followed = nullptr; // by the last one
    double predicted_us = 0; // the next one, if it follows the same
  };
  std::map<uint64_t, Learnt> learnt_; // of programs_, by Trace::signature()
  int64_t num_evictions_ = 0; // up to the step that ended last
  int64_t num_steps_ = 0;
  int64_t num_captures_ = 0; // scopes in which the device recorded the work instead of doing it
  bool joins_passes_ = false; // step_boundary() was called once: it ends steps
  Report report_; // of the step that ended last
  Report joined_; // of the passes since the last boundary
  int num_joined_ = 0;
  double plan_us_ = 0; // spent on the plans that were made last
  std::shared_ptr<const Trace> latest_trace_;
  std::vector<Tape::ReplayRecord> replays_; // of the last step
  std::vector<std::pair<double, Bytes>> memory_; // of the step that ended last
  double forward_us_ = 0;
  int64_t link_start_us_ = 0;
  std::vector<TransferRecord> link_records_;
  std::map<const c10::StorageImpl*, std::pair<c10::weak_intrusive_ptr<c10::StorageImpl>, Bytes>> external_;
  std::vector<std::pair<int, std::string>> log_;
};

} // namespace torchlms
