// Gives Python's lock (the GIL) back and takes it, also while the interpreter ends. Python
// before 3.14 ends a thread that asks for the lock of an ending interpreter by pthread_exit. Its
// unwinding meets a destructor or a catch sooner or later, and the process dies by SIGABRT, after
// it has done its work. Here such a thread blocks for good, as it does from Python 3.14 on. csrc
// does not use pybind11's own guards.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <optional>
#include <utility>

namespace pccl {

/// Blocks for good: for a thread that must not go on, because the process is about to end.
[[noreturn]] inline void stay_for_good() {
  for (;;) ::pause();
}

[[nodiscard]] bool is_main_thread();

/// The calling thread, which has the lock, is about to end the interpreter. Returns when the
/// threads that passed stay_if_ends_elsewhere() before are back in Python.
void interpreter_ends();

/// Blocks for good if another thread is about to end the interpreter: the caller, often torch,
/// would take the lock back with a guard of its own. A callback of pccl (`is_callback`) does not
/// block.
void stay_if_ends_elsewhere(bool is_callback);

/// Calls `function`, which may call Python, and returns its value. If the end of the interpreter
/// would end the thread in there, the thread blocks for good.
template <typename Function>
decltype(auto) call_or_stay(Function&& function) {
#ifdef __GLIBCXX__
  try {
    return std::forward<Function>(function)();
  } catch (const abi::__forced_unwind&) {
    stay_for_good();
  }
#else
  return std::forward<Function>(function)();
#endif
}

/// As long as the object lives, the thread is without the lock.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease() {
    call_or_stay([&] { PyEval_RestoreThread(state_); });
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

/// As long as the object lives, the thread is without the lock, whether or not it had it before.
class GilReleaseIfHeld {
 public:
  GilReleaseIfHeld() {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) release_.emplace();
  }

 private:
  std::optional<GilRelease> release_;
};

/// As long as the object lives, the thread has the lock, whether or not it had it before.
class GilAcquire {
 public:
  GilAcquire() : state_(call_or_stay([] { return PyGILState_Ensure(); })) {}
  ~GilAcquire() { PyGILState_Release(state_); }
  GilAcquire(const GilAcquire&) = delete;
  GilAcquire& operator=(const GilAcquire&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace pccl
