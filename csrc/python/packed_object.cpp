// SPDX-License-Identifier: BSD-3-Clause
#include "python/packed_object.h"

#include <memory>
#include <torch/csrc/autograd/python_variable.h>

#include "hooks.h"
#include "packed.h"
#include "python/default_hooks.h"
#include "python/errors.h"
#include "python/progress.h"

namespace py = pybind11;

namespace torchlms {

namespace {

// Exactly one of the two is set.
struct PackedObject {
  PyObject_HEAD Packed* packed;
  PyObject* detached; // a kind of tensor that torchlms passes through: an alias without its graph
  VersionPin pin; // of the detached tensor
};

PyTypeObject packed_type{};
PyObject* opt_out_name = nullptr; // "_do_not_offload"
PyObject* detach_name = nullptr;

void dealloc(PyObject* self) {
  auto* object = reinterpret_cast<PackedObject*>(self);
  delete object->packed;
  Py_XDECREF(object->detached);
  Py_TYPE(self)->tp_free(self);
}

bool opted_out(PyObject* tensor) {
  PyObject* value = nullptr;
#if PY_VERSION_HEX >= 0x030D0000
  const int found = PyObject_GetOptionalAttr(tensor, opt_out_name, &value);
#else
  const int found = _PyObject_LookupAttr(tensor, opt_out_name, &value);
#endif
  if (found <= 0) {
    PyErr_Clear();
    return false;
  }
  const bool is_out = PyObject_IsTrue(value) == 1;
  Py_DECREF(value);
  return is_out;
}

PyObject* pack(PyObject*, PyObject* tensor) {
  auto* object = PyObject_New(PackedObject, &packed_type);
  if (!object) {
    return nullptr;
  }
  object->packed = nullptr;
  object->detached = nullptr;
  object->pin = VersionPin();
  const py::object owner = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(object));
  try {
    const at::Tensor& saved = THPVariable_Unpack(tensor);
    const bool is_plain = THPVariable_CheckTypeExact(Py_TYPE(tensor));
    object->packed = pack_for_current_scope(saved, is_plain, is_plain && opted_out(tensor)).release();
    const Tape* tape = current_tape();
    if (object->packed && tape->mode() == Tape::Mode::kReactive) {
      count_recorded(tape->session());
    }
    if (!object->packed) {
      object->pin = VersionPin(saved);
      object->detached = PyObject_CallMethodNoArgs(tensor, detach_name);
      if (!object->detached) {
        return nullptr;
      }
    }
    return owner.inc_ref().ptr();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

PyObject* unpack(PyObject*, PyObject* self) {
  auto* object = reinterpret_cast<PackedObject*>(self);
  try {
    if (object->detached) {
      object->pin.check(THPVariable_Unpack(object->detached));
      return PyObject_CallMethodNoArgs(object->detached, detach_name);
    }
    const CopyOut copy_out = copy_out_for_current_node();
    if (object->packed->is_ready()) {
      return THPVariable_Wrap(object->packed->unpack(copy_out, nullptr));
    }
    at::Tensor tensor;
    {
      const py::gil_scoped_release release; // the link may take long, and other threads may go on
      tensor = object->packed->unpack(copy_out, check_signals);
    }
    return THPVariable_Wrap(std::move(tensor));
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

PyMethodDef pack_method = {"torchlms_pack", pack, METH_O, nullptr};
PyMethodDef unpack_method = {"torchlms_unpack", unpack, METH_O, nullptr};

} // namespace

void register_packed_type() {
  Py_SET_REFCNT(&packed_type, 1);
  packed_type.tp_name = "torchlms._C.Packed";
  packed_type.tp_basicsize = sizeof(PackedObject);
  packed_type.tp_dealloc = dealloc;
  packed_type.tp_flags = Py_TPFLAGS_DEFAULT;
  packed_type.tp_doc = "What autograd stores in place of a tensor that it saves inside a torchlms scope.";
  if (PyType_Ready(&packed_type) < 0) {
    throw py::error_already_set();
  }
  opt_out_name = PyUnicode_InternFromString("_do_not_offload");
  detach_name = PyUnicode_InternFromString("detach");
  register_default_hooks(PyCFunction_New(&pack_method, nullptr), PyCFunction_New(&unpack_method, nullptr));
}

void keep_tensor(const py::object& tensor) {
  TORCH_CHECK_TYPE(
      THPVariable_Check(tensor.ptr()),
      "torchlms.keep: expected a tensor, got ",
      Py_TYPE(tensor.ptr())->tp_name);
  if (Tape* tape = current_tape()) {
    tape->keep(THPVariable_Unpack(tensor.ptr()));
  }
}

} // namespace torchlms
