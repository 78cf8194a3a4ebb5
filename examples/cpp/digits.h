// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <torch/types.h>

// Scanned digits: images (N, 1, 32, 32) from 0 to 1, enlarged from 8x8; labels (N) from 0 to 9.
struct Digits {
  torch::Tensor images;
  torch::Tensor labels;
};

// The first `count` of the file that export_digits.py writes; throws std::runtime_error.
Digits load_digits(const std::string& path, int64_t count);
