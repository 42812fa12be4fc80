// See errors.h. The classes are looked up at the first error: importing them earlier would tie the
// loading of the extension to the order of imports.
#include "torch/errors.h"

#include <torch/csrc/utils/pybind.h>

#include <string>

#include "base/text.h"
#include "python/engine_owner.h"
#include "python/gil.h"

namespace pccl {
namespace {

namespace py = pybind11;

std::string text_of(const Error& error) {
  if (!error.text.empty()) return printable(error.text);  // Python wants UTF-8, a terminal no more
  switch (error.code) {
#define PCCL_TEXT(name, number, text) \
  case ErrorCode::name:               \
    return text;
    PCCL_ERRORS(PCCL_TEXT)
#undef PCCL_TEXT
    case ErrorCode::none:
      break;
  }
  return "unknown error";
}

}  // namespace

PcclError::PcclError(const Error& error)
    : ::torch::PyTorchError(text_of(error)), code_(error.code) {}

PyObject* PcclError::python_type() {
  // Classes live as long as the interpreter, so the reference that the table holds is enough.
  try {
    return call_or_stay([&] {
      const py::object table = py::module_::import("pccl_backend._errors").attr("BY_CODE");
      return py::object(table[py::str(std::string(error_name(code_)))]).ptr();
    });
  } catch (const py::error_already_set&) {
    return PyExc_RuntimeError;  // while the interpreter is being taken down
  }
}

void raise(const Error& error) { throw PcclError(error); }

std::exception_ptr to_exception(const Error& error) {
  return std::make_exception_ptr(PcclError(error));
}

void refuse_fork() {
  if (EngineOwner::instance().forked()) raise(forked_error());
}

void check(const Error& error) {
  if (error.failed()) raise(error);
}

void register_translator() {
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (PcclError& error) {
      PyErr_SetString(error.python_type(), error.what());
    }
  });
}

}  // namespace pccl
