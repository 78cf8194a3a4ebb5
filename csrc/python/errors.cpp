// SPDX-License-Identifier: BSD-3-Clause
#include "python/errors.h"

#include <stdexcept>
#include <torch/csrc/Exceptions.h>

#include "session.h"
#include "swap/disk_store.h"

namespace py = pybind11;

namespace torchlms {

namespace {

// Borrowed for ever: exceptions may be thrown while the interpreter shuts down.
PyObject* disk_error_type = nullptr;
PyObject* budget_error_type = nullptr;

// A disk error on its way through PyTorch's ops, which know only their own exceptions. PyTorch asks
// for the Python type when it holds the GIL again.
struct DiskErrorInOp : torch::PyTorchError {
  explicit DiskErrorInOp(const std::string& text) : torch::PyTorchError(text) {}
  PyObject* python_type() override {
    return disk_error_type;
  }
};

std::string numbered(const DiskError& error) {
  return "[Errno " + std::to_string(error.code()) + "] " + error.what();
}

void throw_disk_error(const DiskError& error) {
  throw DiskErrorInOp(numbered(error));
}

} // namespace

void set_error_types(py::object disk_error, py::object budget_error) {
  disk_error_type = disk_error.release().ptr();
  budget_error_type = budget_error.release().ptr();
  Session::set_disk_error_thrower(throw_disk_error);
}

void set_python_error() noexcept {
  try {
    throw;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const DiskError& error) {
    PyErr_SetString(disk_error_type, numbered(error).c_str());
  } catch (const BudgetError& error) {
    PyErr_SetString(budget_error_type, error.what());
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
  }
}

void register_exception_translator() {
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    if (!pointer) {
      return;
    }
    try {
      std::rethrow_exception(pointer);
    } catch (const py::builtin_exception&) {
      throw; // pybind11's own
    } catch (...) {
      set_python_error();
    }
  });
}

void check_signals() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) {
    throw py::error_already_set();
  }
}

} // namespace torchlms
