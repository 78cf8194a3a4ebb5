// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <pybind11/pybind11.h>

namespace torchlms {

// torchlms.DiskError (an OSError that takes one string) and torchlms.BudgetError (a
// torch.OutOfMemoryError). Called once, with the GIL.
void set_error_types(pybind11::object disk_error, pybind11::object budget_error);

// Turns the exceptions of the C++ library, and PyTorch's, into Python's: for pybind11 functions ...
void register_exception_translator();
// ... and for plain C functions: sets the Python error for the exception being handled. Requires: the
// GIL, inside a catch block.
void set_python_error() noexcept;

// Runs Python's signal handlers; throws what they raise. Takes the GIL.
void check_signals();

} // namespace torchlms
