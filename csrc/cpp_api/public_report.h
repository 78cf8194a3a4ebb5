// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torchlms/torchlms.h>

#include "report.h"

namespace torchlms {

v1::Report public_report(const Report& report);

} // namespace torchlms
