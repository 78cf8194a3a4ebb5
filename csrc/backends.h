// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "export.h"

namespace torchlms {

// Makes the devices known beside the CPU: loads the library beside this one that drives them, if it was built
// and PyTorch here has what it needs. Returns why there is none, or an empty text. Thread-safe; only the first
// call does anything.
TORCHLMS_EXPORT const std::string& load_cuda_backend();

} // namespace torchlms
