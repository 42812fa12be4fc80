// From an Error of the engine to a Python exception: thrown as one C++ type, which pybind and
// torch's own translation (autograd, futures) both turn into the class that pccl_backend/_errors.py
// names for the code. Wrong arguments are TORCH_CHECKs in convert.cpp, as they are in gloo.
#pragma once

#include <torch/csrc/Exceptions.h>

#include <exception>

#include "base/error.h"

namespace pccl {

/// An Error on its way to Python. Where pybind is not involved, torch asks `python_type` for the
/// class.
class PcclError final : public ::torch::PyTorchError {
 public:
  explicit PcclError(const Error& error);
  /// A borrowed reference; needs the GIL.
  PyObject* python_type() override;
  [[nodiscard]] ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

[[noreturn]] void raise(const Error& error);
[[nodiscard]] std::exception_ptr to_exception(const Error& error);
/// Throws in a forked child: no thread completes an operation there, and locks may be held for
/// good.
void refuse_fork();
/// Throws unless `error` means success.
void check(const Error& error);
/// Makes pybind11 turn PcclError into the class of its code; called once, by the module.
void register_translator();

}  // namespace pccl
