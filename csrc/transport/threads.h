// Threads of this library inside a program that has its own.
#pragma once

#include <pthread.h>

#include <csignal>
#include <memory>
#include <thread>
#include <utility>

namespace pccl {

/// Starts a thread of this name (at most 15 characters). Signals are the program's: they go to its
/// threads. But a fault of the thread itself (a tensor that is mapped from a file which has become
/// shorter) reaches the program's handler. Throws std::system_error.
template <typename Body>
[[nodiscard]] std::thread start_thread(const char* name, Body body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) {
    sigdelset(&all, fault);
  }
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const std::unique_ptr<sigset_t, void (*)(sigset_t*)> restore(  // also if there is no thread
      &before, [](sigset_t* set) { pthread_sigmask(SIG_SETMASK, set, nullptr); });
  return std::thread([name, body = std::move(body)]() mutable {
    pthread_setname_np(pthread_self(), name);
    body();
  });
}

}  // namespace pccl
