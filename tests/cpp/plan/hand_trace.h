// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

#include "trace/recorder.h"

namespace torchlms {

// Writes traces whose plans can be worked out on paper: time passes only where it says so, and the base
// is the same throughout.
class HandTrace {
 public:
  explicit HandTrace(Bytes base_bytes) : recorder_(base_bytes), base_bytes_(base_bytes) {}

  HandTrace& run(double us) {
    now_us_ += us;
    return *this;
  }
  HandTrace& op(std::string_view name) {
    recorder_.add_op(
        {.name = name, .signature = 1, .inputs = {}, .outputs = {}, .written = {}},
        now_us_,
        base_bytes_,
        base_bytes_);
    return *this;
  }
  StorageId pack(Bytes size_bytes) {
    const StorageId id = recorder_.add_storage(size_bytes, false);
    recorder_.set_managed(id);
    recorder_.add_packed_bytes(id, size_bytes);
    event(EventKind::kPack, id);
    return id;
  }
  HandTrace& dead(StorageId id) {
    return event(EventKind::kDead, id);
  }
  HandTrace& unpack(StorageId id) {
    return event(EventKind::kUnpack, id);
  }
  HandTrace& free(StorageId id) {
    return event(EventKind::kFree, id);
  }
  HandTrace& end_forward() {
    recorder_.end_forward();
    return *this;
  }
  Trace finish() {
    return recorder_.finish();
  }

 private:
  HandTrace& event(EventKind kind, StorageId id) {
    recorder_.add_event(kind, id, now_us_, base_bytes_, base_bytes_);
    return *this;
  }

  Recorder recorder_;
  double now_us_ = 0;
  Bytes base_bytes_;
};

// Three layers of 10 us each way that save 100 bytes each, on a base of 10 bytes:
//
//  event   0       1    2       3    4       5       6    7       8      | 9         10      11 .. 14
//          pack 0  op   pack 1  op   dead 0  pack 2  op   dead 1  dead 2 | unpack 2  free 2  1, then 0
//  us      0       10   10      20   20      20      30   30      30     | 30        40      40 50 50 60
inline Trace three_layers() {
  HandTrace hand(10);
  const StorageId a = hand.pack(100);
  hand.run(10).op("aten::first");
  const StorageId b = hand.pack(100);
  hand.run(10).op("aten::second").dead(a);
  const StorageId c = hand.pack(100);
  hand.run(10).op("aten::third").dead(b).dead(c).end_forward();
  hand.unpack(c).run(10).free(c);
  hand.unpack(b).run(10).free(b);
  hand.unpack(a).run(10).free(a);
  return hand.finish();
}

} // namespace torchlms
