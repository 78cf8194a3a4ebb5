// SPDX-License-Identifier: BSD-3-Clause
#include "trace/recorder.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace torchlms {
namespace {

TEST(Recorder, AnOpKeepsItsNameValuesAndEvent) {
  Recorder recorder(77);
  const StorageId storage = recorder.add_storage(64, true);
  const ValueId input = recorder.add_value(storage, 16, 32, 3, kNone);
  const ValueId output = recorder.add_value(recorder.add_storage(8, false), 0, 8, 0, 0);
  const std::array<ValueId, 2> inputs{input, input};
  const OpId op = recorder.add_op(
      {.name = "aten::mul",
       .signature = 5,
       .duration_us = 2.5,
       .inputs = inputs,
       .outputs = {&output, 1},
       .written = {&output, 1},
       .is_replayable = true},
      10,
      100,
      120);

  const Trace trace = recorder.finish();
  EXPECT_EQ(op, 0);
  EXPECT_EQ(trace.entry_bytes, 77);
  EXPECT_EQ(trace.name(trace.ops[0]), "aten::mul");
  EXPECT_EQ(trace.ops[0].duration_us, 2.5);
  EXPECT_TRUE(std::ranges::equal(trace.inputs(trace.ops[0]), inputs));
  ASSERT_EQ(trace.outputs(trace.ops[0]).size(), 1u);
  EXPECT_EQ(trace.outputs(trace.ops[0])[0], output);
  EXPECT_EQ(trace.values[input].offset_bytes, 16);
  EXPECT_EQ(trace.values[input].version, 3);
  EXPECT_TRUE(trace.storages[storage].is_root);
  ASSERT_EQ(trace.events.size(), 1u);
  EXPECT_EQ(trace.events[0].kind, EventKind::kOp);
  EXPECT_EQ(trace.events[0].subject, op);
  EXPECT_EQ(trace.events[0].base_peak_bytes, 120);
}

TEST(Recorder, OpsOfOneOperatorShareAName) {
  Recorder recorder;
  for (int i = 0; i < 3; ++i) {
    recorder.add_op({.name = std::string("aten::add"), .signature = 1}, 0, 0, 0);
    recorder.add_op({.name = "aten::mul", .signature = 1}, 0, 0, 0);
  }
  const Trace trace = recorder.finish();
  EXPECT_EQ(trace.op_names, (std::vector<std::string>{"aten::add", "aten::mul"}));
  EXPECT_EQ(trace.name(trace.ops[4]), "aten::add");
}

TEST(Recorder, PositionsOfAManagedStorageAreItsFirstAndLastEvents) {
  Recorder recorder;
  const StorageId id = recorder.add_storage(64, false);
  recorder.set_managed(id);
  for (const EventKind kind :
       {EventKind::kPack,
        EventKind::kPack,
        EventKind::kDead,
        EventKind::kUnpack,
        EventKind::kUnpack,
        EventKind::kDead,
        EventKind::kFree}) {
    recorder.add_event(kind, id, 0, 0, 0);
  }
  recorder.add_packed_bytes(id, 64);
  recorder.add_packed_bytes(id, 16);
  const StorageRecord& storage = recorder.trace().storages[id];
  EXPECT_EQ(storage.num_packs, 2);
  EXPECT_EQ(storage.packed_bytes, 80);
  EXPECT_EQ(storage.first_pack, 0);
  EXPECT_EQ(storage.dead, 2);
  EXPECT_EQ(storage.first_unpack, 3);
  EXPECT_EQ(storage.last_unpack, 4);
  EXPECT_EQ(storage.freed, 6);
}

TEST(Recorder, AStorageThatIsNotManagedHasEventsButNoPositions) {
  Recorder recorder;
  const StorageId id = recorder.add_storage(64, true);
  recorder.add_event(EventKind::kPack, id, 0, 0, 0);
  recorder.add_event(EventKind::kUnpack, id, 0, 0, 0);
  const Trace trace = recorder.finish();
  EXPECT_EQ(trace.events.size(), 2u);
  EXPECT_EQ(trace.storages[id].num_packs, 1);
  EXPECT_EQ(trace.storages[id].first_pack, kNone);
  EXPECT_EQ(trace.storages[id].first_unpack, kNone);
}

TEST(Recorder, TheRunningSignatureDependsOnEveryOpAndTheirOrder) {
  const auto signature_of = [](const std::vector<uint64_t>& ops) {
    Recorder recorder;
    for (const uint64_t op : ops) {
      recorder.add_op({.name = "aten::add", .signature = op}, 0, 0, 0);
    }
    return recorder.finish().signature();
  };
  EXPECT_EQ(signature_of({1, 2, 3}), signature_of({1, 2, 3}));
  EXPECT_NE(signature_of({1, 2, 3}), signature_of({2, 1, 3}));
  EXPECT_NE(signature_of({1, 2, 3}), signature_of({1, 2}));
  EXPECT_NE(signature_of({0}), signature_of({0, 0}));
}

TEST(Recorder, ForwardEndsAtTheFirstCallOrWithTheTrace) {
  Recorder recorder;
  const StorageId id = recorder.add_storage(64, false);
  recorder.add_event(EventKind::kPack, id, 0, 0, 0);
  recorder.end_forward();
  recorder.add_event(EventKind::kUnpack, id, 0, 0, 0);
  recorder.end_forward();
  EXPECT_EQ(recorder.finish().forward_end, 1);

  recorder.add_op({.name = "aten::add", .signature = 1}, 0, 0, 0);
  EXPECT_EQ(recorder.finish().forward_end, 1);
}

TEST(Recorder, TheBackwardPeakNodeIsTheOneThatRanWhenTheBasePeakedInBackward) {
  Recorder recorder;
  const StorageId id = recorder.add_storage(64, false);
  recorder.add_event(EventKind::kPack, id, 0, 0, 900);
  recorder.end_forward();
  recorder.set_backward_node("SmallBackward0");
  recorder.add_event(EventKind::kUnpack, id, 0, 0, 100);
  recorder.set_backward_node("LargeBackward0");
  recorder.add_event(EventKind::kUnpack, id, 0, 0, 300);
  recorder.set_backward_node("LastBackward0");
  recorder.add_event(EventKind::kFree, id, 0, 0, 300);
  EXPECT_EQ(recorder.finish().backward_peak_node, "LargeBackward0");
}

TEST(Recorder, IsAsNewAfterFinish) {
  Recorder recorder(5);
  recorder.add_op({.name = "aten::add", .signature = 1}, 0, 0, 0);
  recorder.end_forward();
  recorder.finish();
  EXPECT_TRUE(recorder.trace().events.empty());
  EXPECT_EQ(recorder.trace().entry_bytes, 0);
  recorder.add_op({.name = "aten::add", .signature = 1}, 0, 0, 0);
  const Trace trace = recorder.finish();
  EXPECT_EQ(trace.name(trace.ops[0]), "aten::add");
  EXPECT_EQ(trace.forward_end, 1);
}

} // namespace
} // namespace torchlms
