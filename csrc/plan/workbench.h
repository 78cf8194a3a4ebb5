// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <vector>

#include "plan/cost_model.h"
#include "plan/demands.h"
#include "plan/design.h"
#include "plan/recompute_schedule.h"
#include "plan/regions.h"
#include "plan/step_timer.h"
#include "plan/swap_schedule.h"
#include "trace/trace.h"

namespace torchlms {

// Where designs are fitted into memory and timed. Budgets are in the bytes of the trace; a level is the
// budget that a design is made for. Keeps what belongs to the last set of recomputed storages, so that
// designs which differ in their swaps only cost less. Refers to trace and costs. Thread-safety: none.
class Workbench {
 public:
  // moves_all: nothing is kept that may be swapped.
  Workbench(const Trace& trace, const CostModel& costs, bool moves_all = false);

  const Trace& trace() const {
    return trace_;
  }
  const CostModel& costs() const {
    return costs_;
  }
  const Regions& regions() const {
    return regions_;
  }
  bool has_demands() const {
    return !demands_.empty();
  }
  // Whether a design may treat the storage so: what is demanded is no choice, and not all can be rebuilt.
  bool may_be(StorageId id, ActionKind kind) const;
  // The operator that wrote it last; kNone: none did.
  int32_t maker(StorageId id) const {
    return makers_[id];
  }
  // But for what is demanded.
  Design keep_everything() const;

  // The trace as the design's recomputes leave it. Good until the next call of anything here.
  const Trace& shown(const Design& design);
  // Its storages: the same in less time.
  const std::vector<StorageRecord>& storages(const Design& design);
  // What may be swapped beside the design's recomputes.
  const std::vector<Candidate>& candidates(const Design& design);
  // Per event, the highest bytes held before it when what the design moves leaves at once and comes back on
  // demand.
  std::vector<Bytes> held_on_demand(const Design& design);

  // Swaps by distance what must go beside the recomputes: the longest distances, as few as fit.
  void swap_by_distance(Design& design, Bytes level);
  // Adds swaps until the design fits on demand, and drops those that are then not needed, shortest distance
  // first. False: it cannot be made to fit.
  bool fit(Design& design, Bytes level);
  // Requires: the design fits.
  Score score(const Design& design, Bytes level);
  // fit and score; takes over the trial if it is better.
  bool try_design(Design& design, Design trial, Bytes level);
  // Tries other prefetch rules.
  bool try_rules(Design& design, Bytes level);

  // The design with releases as late as `budget_bytes` allows. Requires: level <= budget_bytes.
  Plan plan(const Design& design, Bytes level, Bytes budget_bytes);

 private:
  // The events between two at which something that may be swapped leaves or comes back, as one.
  struct Segments {
    int32_t first = 0; // segment
    int32_t last = 0;
  };
  struct Frame {
    SwapSchedule schedule;
    std::vector<int32_t> by_distance; // longest first
    std::vector<int32_t> by_size; // largest first, then shortest distance first
    std::vector<Segments> gaps; // per candidate
    std::vector<Bytes> kept; // per segment: highest bytes held when nothing is swapped
    Selection forced; // per candidate: is always swapped

    explicit Frame(const Trace& shown);
  };

  void choose(const Design& design);
  Frame& frame(const Design& design);
  static Selection selection(const Frame& frame, const Design& design);
  static std::vector<Bytes> held(const Frame& frame, const Selection& selected);
  static bool repair(const Frame& frame, Selection& selected, Bytes level);
  static void drop_redundant(const Frame& frame, Selection& selected, Bytes level);
  static void take(const Frame& frame, const Selection& selected, Design& design);

  const Trace& trace_;
  const CostModel& costs_;
  bool moves_all_;
  Regions regions_;
  Demands demands_;
  std::vector<int32_t> makers_; // by StorageId: index into Trace::op_names
  RecomputeSchedule recompute_;
  StepTimer timer_;
  std::vector<Bytes> change_;
  // Of the last set of recomputed storages.
  Recomputed recomputed_;
  std::optional<Frame> frame_; // made when it is asked for
};

} // namespace torchlms
