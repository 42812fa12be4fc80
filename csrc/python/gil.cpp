// See gil.h.
#include "python/gil.h"

#include <sys/syscall.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

namespace pccl {
namespace {

using std::chrono::steady_clock;

// A thread on its way back to Python has arrived by then, on a busy machine too.
constexpr std::chrono::milliseconds kWayBack{250};

std::atomic<std::thread::id> ender;
std::atomic<steady_clock::time_point> seen;  // a thread that may be on its way back

}  // namespace

bool is_main_thread() {
  static thread_local const bool main = ::syscall(SYS_gettid) == ::getpid();
  return main;
}

void interpreter_ends() {
  ender.store(std::this_thread::get_id());
  const GilRelease release;
  std::this_thread::sleep_until(seen.load() + kWayBack);
}

void stay_if_ends_elsewhere(bool is_callback) {
  // Seen first: either the ending thread waits for this one, or this one stays.
  if (!is_main_thread()) seen.store(steady_clock::now());
  const std::thread::id by = ender.load();
  if (by == std::thread::id() || by == std::this_thread::get_id() || is_callback) return;
  const GilReleaseIfHeld release;
  stay_for_good();
}

}  // namespace pccl
