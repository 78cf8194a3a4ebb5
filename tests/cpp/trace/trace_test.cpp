// SPDX-License-Identifier: BSD-3-Clause
#include "trace/trace.h"

#include <gtest/gtest.h>

#include "trace/recorder.h"

namespace torchlms {
namespace {

void add_events(Recorder& recorder, StorageId id, std::initializer_list<EventKind> kinds, Bytes base_peak) {
  for (const EventKind kind : kinds) {
    recorder.add_event(kind, id, 1, base_peak, base_peak);
  }
}

TEST(Trace, AStorageCountsFromAfterItsPackUntilItsFree) {
  Recorder recorder;
  const StorageId small = recorder.add_storage(5, false);
  const StorageId large = recorder.add_storage(100, false);
  recorder.set_managed(small);
  recorder.set_managed(large);
  add_events(recorder, small, {EventKind::kPack}, 1000); // nothing held yet
  add_events(recorder, large, {EventKind::kPack}, 990); // small: 995
  add_events(recorder, large, {EventKind::kFree}, 896); // both: 1001
  add_events(recorder, small, {EventKind::kFree}, 996); // small again: 1001
  add_events(recorder, small, {EventKind::kUnpack}, 1000); // nothing
  EXPECT_EQ(recorder.finish().unlimited_peak_bytes(), 1001);
}

TEST(Trace, AStorageThatIsNeverFreedCountsToTheEnd) {
  Recorder recorder;
  const StorageId kept = recorder.add_storage(7, false);
  recorder.set_managed(kept);
  add_events(recorder, kept, {EventKind::kPack}, 0);
  recorder.add_op({.name = "aten::add", .signature = 1}, 0, 0, 10);
  EXPECT_EQ(recorder.finish().unlimited_peak_bytes(), 17);
}

TEST(Trace, AStorageThatIsNotManagedIsInTheBase) {
  Recorder recorder;
  const StorageId root = recorder.add_storage(7, true);
  add_events(recorder, root, {EventKind::kPack, EventKind::kUnpack}, 10);
  EXPECT_EQ(recorder.finish().unlimited_peak_bytes(), 10);
}

TEST(Trace, SavedBytesCountEachPackedStorageOnceAndRootsToo) {
  Recorder recorder;
  const StorageId root = recorder.add_storage(7, true);
  const StorageId saved = recorder.add_storage(20, false);
  recorder.add_storage(400, false); // read by an op only
  recorder.add_packed_bytes(root, 3);
  recorder.set_managed(saved);
  add_events(recorder, saved, {EventKind::kPack, EventKind::kPack}, 0);
  EXPECT_EQ(recorder.finish().saved_bytes(), 27);
}

TEST(Trace, AnEmptyTraceHoldsNothing) {
  const Trace trace;
  EXPECT_EQ(trace.unlimited_peak_bytes(), 0);
  EXPECT_EQ(trace.saved_bytes(), 0);
  EXPECT_EQ(trace.signature(), 0u);
  EXPECT_EQ(trace.step_us(), 0);
}

TEST(Trace, JsonHasTheFormatFirstAndEveryField) {
  Recorder recorder(3);
  const StorageId id = recorder.add_storage(64, false);
  const ValueId value = recorder.add_value(id, 8, 16, 2, 0);
  recorder.set_managed(id);
  recorder.add_packed_bytes(id, 16);
  recorder.add_event(EventKind::kPack, id, 0.5, 10, 20);
  recorder.add_op(
      {.name = "aten::add", .signature = 0xabc, .duration_us = 1.5, .outputs = {&value, 1}}, 2, 30, 40);
  Trace trace = recorder.finish();
  trace.prefix_signatures = {0x123};
  EXPECT_EQ(
      trace.to_json(),
      R"({"format":"torchlms.trace","version":1,)"
      R"("ops":[{"name":"aten::add","signature":"0000000000000abc","duration_us":1.5,)"
      R"("inputs":[],"outputs":[0],"written":[],"is_replayable":false}],)"
      R"("values":[{"storage":0,"offset_bytes":8,"size_bytes":16,"version":2,"producer":0,"is_final":true}],)"
      R"("storages":[{"size_bytes":64,"is_root":false,"is_managed":true,"is_opaque":false,)"
      R"("outlives_step":false,"num_packs":1,"packed_bytes":16,)"
      R"("first_pack":0,"dead":-1,"first_unpack":-1,"last_unpack":-1,"freed":-1}],)"
      R"("events":[{"kind":"pack","subject":0,"time_us":0.5,"base_bytes":10,"base_peak_bytes":20},)"
      R"({"kind":"op","subject":0,"time_us":2,"base_bytes":30,"base_peak_bytes":40}],)"
      R"("forward_end":2,"entry_bytes":3,"backward_peak_node":"","prefix_signatures":["0000000000000123"]})");
}

} // namespace
} // namespace torchlms
