// SPDX-License-Identifier: BSD-3-Clause
#include "plan/segments.h"

#include <algorithm>
#include <array>

namespace torchlms {

namespace {

constexpr std::array kSegmentsPerPass = {64, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1};

} // namespace

std::vector<Design> cut_into_segments(Workbench& bench) {
  const std::vector<StorageRecord>& storages = bench.trace().storages;
  std::vector<const Region*> in_order;
  Bytes all = 0;
  for (const Region& region : bench.regions().all()) {
    in_order.push_back(&region);
    all += storages[region.storage].size_bytes;
  }
  std::stable_sort(in_order.begin(), in_order.end(), [](const Region* a, const Region* b) {
    return a->ops.back() < b->ops.back();
  });
  std::vector<Design> designs;
  for (const int count : kSegmentsPerPass) {
    const Bytes most = all / count;
    Design design = bench.keep_everything();
    design.start = StartKind::kSegments;
    // A boundary is the smallest storage of the later half of its segment.
    size_t first = 0;
    while (first < in_order.size()) {
      Bytes bytes = 0;
      size_t boundary = in_order.size();
      size_t i = first;
      for (; i < in_order.size() && bytes < most; ++i) {
        bytes += storages[in_order[i]->storage].size_bytes;
        if (2 * bytes >= most &&
            (boundary == in_order.size() ||
             storages[in_order[i]->storage].size_bytes <= storages[in_order[boundary]->storage].size_bytes)) {
          boundary = i;
        }
      }
      const bool is_last = i == in_order.size();
      for (size_t k = first; k < (is_last ? i : boundary); ++k) {
        design.kinds[in_order[k]->storage] = ActionKind::kRecompute;
      }
      first = is_last ? i : boundary + 1;
    }
    designs.push_back(std::move(design));
  }
  return designs;
}

} // namespace torchlms
