// SPDX-License-Identifier: BSD-3-Clause
#include "plan/choices.h"

#include <algorithm>
#include <vector>

#include "plan/candidates.h"
#include "plan/demands.h"
#include "plan/recompute_schedule.h"
#include "plan/regions.h"
#include "trace/json.h"

namespace torchlms {

namespace {

template <class Numbers>
void write_numbers(JsonWriter& json, const char* name, const Numbers& numbers) {
  json.key(name).begin_array();
  for (const auto number : numbers) {
    json.value(number);
  }
  json.end_array();
}

const char* to_string(Demand demand) {
  return demand == Demand::kSwap ? "swap" : demand == Demand::kRecompute ? "recompute" : "";
}

void write_storage(JsonWriter& json, StorageId id, const Trace& trace, Demand demand) {
  const StorageRecord& storage = trace.storages[id];
  const auto gap = swap_gap(storage, trace);
  json.begin_object()
      .field("storage", id)
      .field("size_bytes", storage.size_bytes)
      .field("dead", storage.dead)
      .field("first_unpack", storage.first_unpack)
      .field("freed", storage.freed)
      .field("is_held_longer", may_be_held_longer(storage))
      .field("may_swap", gap.has_value())
      .field("gap_last", gap ? gap->last : kNone)
      .field("demand", to_string(demand))
      .end_object();
}

void write_region(JsonWriter& json, const Region& region, const std::vector<StorageId>& leaves) {
  json.begin_object()
      .field("storage", region.storage)
      .field("replay_us", region.replay_us)
      .field("extra_bytes", region.extra_bytes);
  write_numbers(json, "leaves", leaves);
  json.end_object();
}

} // namespace

std::string choices_json(const Trace& trace) {
  const Regions regions(trace);
  const Demands demands = demands_of(trace, regions);
  std::vector<double> times_us;
  for (const Event& event : trace.events) {
    times_us.push_back(event.time_us);
  }
  std::vector<uint8_t> is_written(trace.storages.size(), 0);
  for (size_t i = 0; i < trace.storages.size(); ++i) {
    is_written[i] = swap_gap(trace.storages[i], trace) ? 1 : 0;
  }
  std::vector<const Region*> in_order;
  for (const Region& region : regions.all()) {
    in_order.push_back(&region);
    is_written[region.storage] = 1;
    for (const StorageId leaf : region.leaves) {
      is_written[leaf] |= may_be_held_longer(trace.storages[leaf]) ? 1 : 0;
    }
  }
  std::stable_sort(in_order.begin(), in_order.end(), [](const Region* a, const Region* b) {
    return a->ops.back() < b->ops.back();
  });
  JsonWriter json;
  json.begin_object().field("forward_end", trace.forward_end);
  write_numbers(json, "times_us", times_us);
  write_numbers(json, "kept_bytes", held_when_kept(trace));
  write_numbers(json, "kept_after_bytes", held_after_when_kept(trace));
  json.key("storages").begin_array();
  for (size_t i = 0; i < trace.storages.size(); ++i) {
    if (is_written[i]) {
      write_storage(json, static_cast<StorageId>(i), trace, demands.empty() ? Demand::kNone : demands[i]);
    }
  }
  json.end_array().key("regions").begin_array();
  for (const Region* const region : in_order) {
    std::vector<StorageId> leaves;
    std::copy_if(
        region->leaves.begin(), region->leaves.end(), std::back_inserter(leaves), [&](StorageId leaf) {
          return is_written[leaf] != 0;
        });
    write_region(json, *region, leaves);
  }
  json.end_array().end_object();
  return json.take();
}

} // namespace torchlms
