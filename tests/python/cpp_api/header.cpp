// SPDX-License-Identifier: BSD-3-Clause
#include <torchlms/torchlms.h>

static_assert(__cplusplus < 202002L, "this file tests the header as C++17");

int64_t peak_bytes(torchlms::Session& session) {
  torchlms::Options options;
  options.budget_bytes = 20ull << 30;
  torchlms::Scope scope(session);
  return session.report().peak_bytes;
}
