// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Marks what the extension module torchlms._C takes from libtorchlms.so, besides the public API of
// <torchlms/torchlms.h>. All other symbols are hidden.
#define TORCHLMS_EXPORT __attribute__((visibility("default")))
