// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torchlms/torchlms.h>

#include "session.h"

namespace torchlms {

// What options mean on this machine: every default filled in, every quantity in bytes. Throws
// std::invalid_argument for a value that its option cannot have, quoted with the accepted forms.
SessionOptions resolve(const v1::Options& options);

} // namespace torchlms
