#include "engine/engine_thread.h"

#include <pthread.h>
#include <signal.h>

#include <exception>
#include <new>
#include <utility>

#include "base/log.h"

namespace pccl {

EngineThread::EngineThread(Loop& loop, std::function<void(const std::string&)> broken) {
  // Signals are the program's: they go to its threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([&loop, on_broken = std::move(broken)] {
    pthread_setname_np(pthread_self(), "pccl-engine");
    try {
      loop.run();
    } catch (const std::exception& e) {
      log_error(std::string("the engine has stopped, this is a bug in pccl: ") + e.what());
      on_broken(e.what());
    }
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void EngineThread::join() {
  if (thread_.joinable()) thread_.join();
}

void EngineThread::forget() {
  // std::thread has no way to drop a thread that does not exist in this process.
  new (&thread_) std::thread();
}

}  // namespace pccl
