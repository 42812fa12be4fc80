// How threads give Python's lock back and take it, at its end too. Python before 3.14 ends a thread
// that comes for the lock when the interpreter is ending by pthread_exit, whose unwinding meets a
// destructor or a catch sooner or later: the process dies by SIGABRT, after it has done its work.
// Such a thread stays where it is here, as it does from Python 3.14 on. Nothing in csrc uses
// pybind11's own guards.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <utility>

namespace pccl {

/// For a thread that must not go on: the process is about to end.
[[noreturn]] inline void stay_for_good() {
  for (;;) ::pause();
}

[[nodiscard]] bool is_main_thread();

/// The calling thread, which has the lock, is about to end the interpreter. Returns when those that
/// went past stay_if_ends_elsewhere() before are back in Python.
void interpreter_ends();

/// Stays if another thread is about to end the interpreter: the caller, often torch, would take the
/// lock back with a guard of its own. A callback of ours (`is_callback`) does not stay.
void stay_if_ends_elsewhere(bool is_callback);

/// What `function` returns, which may call Python; if the interpreter's end ends the thread in
/// there, it stays.
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

/// Without the lock as long as it lives.
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

/// With the lock as long as it lives, whether or not the thread had it.
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
