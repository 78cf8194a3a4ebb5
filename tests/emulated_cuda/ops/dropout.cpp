// SPDX-License-Identifier: BSD-3-Clause
// native_dropout on the device's generator, with the arithmetic of the CPU's kernel.
#include <ATen/ATen.h>

#include "by_hand.h"
#include "cpu_twin.h"
#include "queue.h"
#include "random.h"

namespace emulated_cuda {
namespace {

std::tuple<at::Tensor, at::Tensor> native_dropout(
    const at::Tensor& input, double p, std::optional<bool> train) {
  const auto device = input.get_device();
  auto output = empty_on(device, at::empty_like(input, input.options().device(c10::kMeta)));
  auto mask = empty_on(device, at::empty_like(input, input.options().device(c10::kMeta).dtype(c10::kBool)));
  Twins twins(c10::DeviceType::CPU);
  const bool active = train.value_or(true) && p > 0;
  auto generator = draw(std::nullopt, device);
  enqueue(
      device,
      "aten::native_dropout",
      {{input}, {output, mask}},
      [=, from = twins.of(input), to = twins.of(output), kept = twins.of(mask)]() mutable {
        if (!active) {
          to.copy_(from);
          kept.fill_(true);
          return;
        }
        kept.bernoulli_(1 - p, generator);
        const double scale = p == 1 ? 0. : 1. / (1. - p);
        to.copy_(from * kept * scale);
      });
  return {output, mask};
}

} // namespace

void install_dropout(torch::Library& library) {
  library.impl("native_dropout", &native_dropout);
}

} // namespace emulated_cuda
