#include "python/python_threads.h"

#include <atomic>
#include <utility>

#include "python/completions.h"
#include "python/engine_owner.h"
#include "python/gil.h"

namespace pccl {
namespace {

namespace py = pybind11;

/// The queues for work that needs the GIL, filled by the engine's thread. Never destroyed, like the
/// owner. Made on a thread of the program, whose signal mask its threads have.
struct PythonThreads {
  std::shared_ptr<Completions> events = std::make_shared<Completions>("pccl-events", true);
  std::shared_ptr<Completions> logs = std::make_shared<Completions>("pccl-log", true);
  std::shared_ptr<Completions> releases = std::make_shared<Completions>("pccl-release", true);
  std::atomic<bool> over{false};  // the interpreter is about to end: nothing calls it any more

  static PythonThreads& instance() {
    static auto* threads = new PythonThreads;
    return *threads;
  }
};

/// For tasks of PythonThreads: may they use Python? Such a thread keeps its Python state for good:
/// a child that is forked while a state is made or deleted may hang (python/cpython#112275).
bool enter_python() {
  if (PythonThreads::instance().over.load() || Py_IsInitialized() == 0) return false;
  static thread_local bool kept = false;
  if (!std::exchange(kept, true)) {
    static_cast<void>(PyGILState_Ensure());  // never released
    PyEval_SaveThread();
  }
  return true;
}

void call_python(Completions& thread, const std::shared_ptr<void>& function, const char* what,
                 Arguments arguments) {
  thread.run([function, what, arguments = std::move(arguments)] {
    if (!enter_python()) return;
    const GilAcquire gil;
    try {
      const py::tuple given = arguments();
      PyObject* result = call_or_stay(
          [&] { return PyObject_CallObject(static_cast<PyObject*>(function.get()), given.ptr()); });
      if (result == nullptr) throw py::error_already_set();
      Py_DECREF(result);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable(what);
    }
  });
}

}  // namespace

std::shared_ptr<void> held(py::object object) {
  PythonThreads::instance();  // a release may come on a thread of the engine's
  PyObject* pointer = object.release().ptr();
  return {pointer, [](void* raw) {
            PythonThreads::instance().releases->run([raw] {
              if (!enter_python()) return;
              const GilAcquire gil;
              call_or_stay([raw] { Py_DECREF(static_cast<PyObject*>(raw)); });
            });
          }};
}

void call_event_function(const std::shared_ptr<void>& function, Arguments arguments) {
  call_python(*PythonThreads::instance().events, function, "the function of pccl's group events",
              std::move(arguments));
}

void call_log_function(const std::shared_ptr<void>& function, Arguments arguments) {
  call_python(*PythonThreads::instance().logs, function, "the function of pccl's log",
              std::move(arguments));
}

void drain_python_threads() {
  PythonThreads& threads = PythonThreads::instance();
  for (const auto& thread : {threads.events, threads.logs, threads.releases}) {
    thread->drain(kDrainMs);
  }
}

void end_python_threads() { PythonThreads::instance().over.store(true); }

}  // namespace pccl
