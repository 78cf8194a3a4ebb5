// SPDX-License-Identifier: BSD-3-Clause
#include "footprint.h"

#include <algorithm>

#include "runtime/knobs.h"

namespace emulated_cuda {
namespace {

constexpr size_t kMostRuns = 4096; // beyond, the whole span counts as accessed

struct Dim {
  int64_t size;
  int64_t stride;
};

// Dimensions that move, the fastest first, and those that continue another merged into it.
std::vector<Dim> merged_dims(const at::Tensor& tensor) {
  std::vector<Dim> dims;
  for (int64_t i = 0; i < tensor.dim(); i++)
    if (tensor.size(i) != 1 && tensor.stride(i) != 0)
      dims.push_back({tensor.size(i), tensor.stride(i)});
  std::sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  std::vector<Dim> merged;
  for (const Dim& dim : dims) {
    if (!merged.empty() && dim.stride == merged.back().size * merged.back().stride)
      merged.back().size *= dim.size;
    else
      merged.push_back(dim);
  }
  return merged;
}

void add_runs(const at::Tensor& tensor, bool write, std::vector<Access>& into) {
  if (!tensor.is_cuda() || tensor.numel() == 0 || tensor.layout() != c10::kStrided)
    return;
  const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
  const auto item = static_cast<uint64_t>(tensor.itemsize());
  auto dims = merged_dims(tensor);
  uint64_t run = item;
  if (!dims.empty() && dims.front().stride == 1) {
    run *= static_cast<uint64_t>(dims.front().size);
    dims.erase(dims.begin());
  }
  uint64_t runs = 1;
  uint64_t span = run;
  for (const Dim& dim : dims) {
    runs *= static_cast<uint64_t>(dim.size);
    span += static_cast<uint64_t>(dim.size - 1) * static_cast<uint64_t>(dim.stride) * item;
  }
  if (runs > kMostRuns) {
    into.push_back({begin, span, write});
    return;
  }
  std::vector<int64_t> index(dims.size(), 0);
  for (uint64_t i = 0; i < runs; i++) {
    int64_t offset = 0;
    for (size_t d = 0; d < dims.size(); d++)
      offset += index[d] * dims[d].stride;
    into.push_back({begin + offset * static_cast<int64_t>(item), run, write});
    for (size_t d = 0; d < dims.size() && ++index[d] == dims[d].size; d++)
      index[d] = 0;
  }
}

} // namespace

std::vector<Access> accesses_of(const Footprint& footprint) {
  std::vector<Access> accesses;
  if (!knobs().race)
    return accesses;
  for (const auto& tensor : footprint.reads)
    add_runs(tensor, false, accesses);
  for (const auto& tensor : footprint.writes)
    add_runs(tensor, true, accesses);
  return accesses;
}

uint64_t bytes_of(const Footprint& footprint) {
  uint64_t bytes = 0;
  for (const auto* tensors : {&footprint.reads, &footprint.writes})
    for (const auto& tensor : *tensors) {
      if (!tensor.is_cuda() || tensor.layout() != c10::kStrided)
        continue;
      auto size = static_cast<uint64_t>(tensor.itemsize());
      for (const Dim& dim : merged_dims(tensor))
        size *= static_cast<uint64_t>(dim.size);
      bytes += tensor.numel() == 0 ? 0 : size;
    }
  return bytes;
}

} // namespace emulated_cuda
