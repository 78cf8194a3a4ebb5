// SPDX-License-Identifier: BSD-3-Clause
#include "plan/expansions.h"

#include <gtest/gtest.h>

#include "op_trace.h"

namespace torchlms {
namespace {

constexpr Bytes kSmall = 100000;

struct Expanded {
  Trace trace;
  StorageId narrow = kNone; // made by an op that may not run again
  StorageId wide = kNone; // light ops make these of it
  StorageId twin = kNone;
};

Expanded expanded(Bytes wide_bytes, bool has_twin) {
  OpTrace ops;
  Expanded all;
  all.narrow = ops.storage(kSmall);
  ops.op({}, {all.narrow}, {.is_replayable = false});
  ops.save(all.narrow);
  all.wide = ops.storage(wide_bytes);
  ops.op({all.narrow}, {all.wide});
  ops.save(all.wide).drop(all.wide);
  all.twin = ops.storage(wide_bytes);
  ops.op(
      has_twin ? std::vector{all.narrow} : std::vector<StorageId>(), {all.twin}, {.is_replayable = has_twin});
  ops.save(all.twin).drop(all.twin).drop(all.narrow);
  ops.op({}, {ops.storage(kSmall)}, {.is_replayable = false});
  ops.end_forward();
  for (const StorageId id : {all.twin, all.wide, all.narrow}) {
    ops.wait(10).unpack(id).free(id).wait(10);
  }
  ops.unpack(all.narrow);
  all.trace = ops.finish();
  return all;
}

Design design_of(const Trace& trace) {
  const CostModel costs;
  Workbench bench(trace, costs);
  return recompute_expansions(bench);
}

TEST(Expansions, AreFourTimesWhatTheyMustHold) {
  const Expanded wide = expanded(4 * kSmall, false);
  EXPECT_EQ(design_of(wide.trace).kinds[wide.wide], ActionKind::kRecompute);
  const Expanded narrow = expanded(4 * kSmall - 1, false);
  EXPECT_EQ(design_of(narrow.trace).kinds[narrow.wide], ActionKind::kKeep);
}

TEST(Expansions, ShareTheLeafThatTheyRead) {
  const Expanded two = expanded(2 * kSmall, true);
  EXPECT_EQ(design_of(two.trace).kinds[two.wide], ActionKind::kRecompute);
  EXPECT_EQ(design_of(two.trace).kinds[two.twin], ActionKind::kRecompute);
  EXPECT_EQ(design_of(two.trace).kinds[two.narrow], ActionKind::kKeep);
}

TEST(Expansions, ComeFromLightOpsOnly) {
  Expanded wide = expanded(4 * kSmall, false);
  wide.trace.ops[1].duration_us *= 100;
  EXPECT_EQ(design_of(wide.trace).kinds[wide.wide], ActionKind::kKeep);
}

} // namespace
} // namespace torchlms
