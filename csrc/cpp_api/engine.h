// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace torchlms {

// Throws v1::SetupError when this process's autograd asks neither our own engine's hooks nor those that
// the Python package registered. See Note [Hooks without Python].
void check_setup();

} // namespace torchlms
