// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace torchlms {

// This process was forked after torchlms was loaded: it has the parent's objects, but none of the
// parent's threads, and locks may be held for ever by threads that do not exist here.
bool in_forked_child() noexcept;

} // namespace torchlms
