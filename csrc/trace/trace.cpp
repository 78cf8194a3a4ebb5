// SPDX-License-Identifier: BSD-3-Clause
#include "trace/trace.h"

#include <algorithm>
#include <string_view>

#include "trace/json.h"

namespace torchlms {

namespace {

std::string_view to_string(EventKind kind) {
  switch (kind) {
    case EventKind::kOp:
      return "op";
    case EventKind::kPack:
      return "pack";
    case EventKind::kDead:
      return "dead";
    case EventKind::kUnpack:
      return "unpack";
    case EventKind::kFree:
      return "free";
  }
  return "";
}

std::string_view to_string(Demand demand) {
  switch (demand) {
    case Demand::kNone:
      return "none";
    case Demand::kSave:
      return "save";
    case Demand::kRecompute:
      return "recompute";
    case Demand::kSwap:
      return "swap";
  }
  return "";
}

void write_ids(JsonWriter& json, std::string_view key, std::span<const int32_t> ids) {
  json.key(key).begin_array();
  for (const int32_t id : ids) {
    json.value(id);
  }
  json.end_array();
}

void write(JsonWriter& json, const Event& event) {
  json.begin_object()
      .field("kind", to_string(event.kind))
      .field("subject", event.subject)
      .field("time_us", event.time_us)
      .field("base_bytes", event.base_bytes)
      .field("base_peak_bytes", event.base_peak_bytes)
      .end_object();
}

void write(JsonWriter& json, const Value& value) {
  json.begin_object()
      .field("storage", value.storage)
      .field("offset_bytes", value.offset_bytes)
      .field("size_bytes", value.size_bytes)
      .field("version", value.version)
      .field("producer", value.producer)
      .field("is_final", value.is_final)
      .end_object();
}

void write(JsonWriter& json, const StorageRecord& storage) {
  json.begin_object()
      .field("size_bytes", storage.size_bytes)
      .field("is_root", storage.is_root)
      .field("is_managed", storage.is_managed)
      .field("is_opaque", storage.is_opaque)
      .field("outlives_step", storage.outlives_step)
      .field("num_packs", storage.num_packs)
      .field("packed_bytes", storage.packed_bytes)
      .field("first_pack", storage.first_pack)
      .field("dead", storage.dead)
      .field("first_unpack", storage.first_unpack)
      .field("last_unpack", storage.last_unpack)
      .field("freed", storage.freed)
      .end_object();
}

template <typename T>
void write_all(JsonWriter& json, std::string_view key, const std::vector<T>& all) {
  json.key(key).begin_array();
  for (const T& one : all) {
    write(json, one);
  }
  json.end_array();
}

} // namespace

Bytes Trace::unlimited_peak_bytes() const {
  Bytes peak = 0;
  Bytes resident = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    const Event& event = events[i];
    peak = std::max(peak, event.base_peak_bytes + resident);
    if (event.kind == EventKind::kOp || !storages[event.subject].is_managed) {
      continue;
    }
    const StorageRecord& storage = storages[event.subject];
    const auto position = static_cast<EventId>(i);
    if (position == storage.first_pack) {
      resident += storage.size_bytes;
    } else if (position == storage.freed) {
      resident -= storage.size_bytes;
    }
  }
  return peak;
}

Bytes Trace::saved_bytes() const {
  Bytes saved = 0;
  for (const StorageRecord& storage : storages) {
    if (storage.num_packs > 0 || storage.packed_bytes > 0) {
      saved += storage.size_bytes;
    }
  }
  return saved;
}

std::string Trace::to_json() const {
  JsonWriter json;
  json.begin_object().field("format", "torchlms.trace").field("version", kFormatVersion);
  json.key("ops").begin_array();
  for (const Op& op : ops) {
    json.begin_object().field("name", name(op)).key("signature").hex(op.signature);
    json.field("duration_us", op.duration_us);
    write_ids(json, "inputs", inputs(op));
    write_ids(json, "outputs", outputs(op));
    write_ids(json, "written", written(op));
    json.field("is_replayable", op.is_replayable);
    if (op.demand != Demand::kNone) {
      json.field("demand", to_string(op.demand));
    }
    json.end_object();
  }
  json.end_array();
  write_all(json, "values", values);
  write_all(json, "storages", storages);
  write_all(json, "events", events);
  json.field("forward_end", forward_end)
      .field("entry_bytes", entry_bytes)
      .field("backward_peak_node", backward_peak_node);
  json.key("prefix_signatures").begin_array();
  for (const uint64_t prefix : prefix_signatures) {
    json.hex(prefix);
  }
  json.end_array().end_object();
  return json.take();
}

} // namespace torchlms
