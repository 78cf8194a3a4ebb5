// SPDX-License-Identifier: BSD-3-Clause
#include "digits.h"

#include <fstream>
#include <stdexcept>
#include <torch/nn/functional/upsampling.h>
#include <vector>

Digits load_digits(const std::string& path, int64_t count) {
  constexpr int64_t kPixels = 64;
  std::vector<uint8_t> bytes(static_cast<size_t>(count * (kPixels + 1)));
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()))) {
    throw std::runtime_error(path + " has no " + std::to_string(count) + " digits");
  }
  const torch::Tensor records = torch::from_blob(bytes.data(), {count, kPixels + 1}, torch::kUInt8);
  const torch::Tensor pixels =
      records.slice(1, 0, kPixels).to(torch::kFloat32).div(16).view({count, 1, 8, 8});
  const auto enlarge = torch::nn::functional::InterpolateFuncOptions()
                           .size(std::vector<int64_t>{32, 32})
                           .mode(torch::kBilinear)
                           .align_corners(false);
  return {torch::nn::functional::interpolate(pixels, enlarge), records.select(1, kPixels).to(torch::kInt64)};
}
