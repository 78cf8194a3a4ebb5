// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/util/Exception.h>
#include <torchlms/torchlms.h>

#include "session.h"
#include "swap/disk_store.h"

namespace torchlms {

// Runs `call`; what the library throws reaches the user as the public API's exceptions.
template <class F>
auto translated(const F& call) {
  try {
    return call();
  } catch (const DiskError& error) {
    throw v1::DiskError(error.code(), error.what());
  } catch (const BudgetError& error) {
    throw v1::BudgetError(error.what());
  } catch (const c10::ValueError& error) {
    throw std::invalid_argument(error.what_without_backtrace());
  }
}

} // namespace torchlms
