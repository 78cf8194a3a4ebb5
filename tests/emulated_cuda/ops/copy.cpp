// SPDX-License-Identifier: BSD-3-Clause
// copy_: PyTorch's own between devices, which ends in the runtime's copies; on one device the CPU's.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/copy_native.h>

#include "by_hand.h"
#include "cpu_twin.h"
#include "queue.h"

namespace emulated_cuda {
namespace {

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (!self.is_cuda() || !source.is_cuda() || self.get_device() != source.get_device())
    return at::native::copy_(self, source, non_blocking);
  TORCH_CHECK(
      at::is_expandable_to(source.sizes(), self.sizes()),
      "The size of the source does not expand to that of the destination");
  if (self.is_same(source) || self.numel() == 0)
    return self;
  Twins twins(c10::DeviceType::CPU);
  enqueue(
      self.get_device(), "aten::copy_", {{source}, {self}}, [to = twins.of(self), from = twins.of(source)] {
        to.copy_(from);
      });
  return self;
}

} // namespace

void install_copy(torch::Library& library) {
  library.impl("copy_", &copy_);
}

} // namespace emulated_cuda
