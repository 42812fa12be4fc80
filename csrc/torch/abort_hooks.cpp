#include "torch/abort_hooks.h"

#include <exception>
#include <string>
#include <utility>

#include "base/log.h"

namespace pccl {
namespace {

bool is_loss(const Error& error) {
  return error.code == ErrorCode::peer_lost || error.code == ErrorCode::timed_out ||
         error.code == ErrorCode::unreachable || error.code == ErrorCode::broken;
}

}  // namespace

bool AbortHooks::add(std::int64_t id, Hook hook) {
  const std::lock_guard lock(mutex_);
  return hooks_.emplace(id, std::move(hook)).second;
}

bool AbortHooks::remove(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  return hooks_.erase(id) == 1;
}

void AbortHooks::call() {
  std::map<std::int64_t, Hook> present;
  {
    const std::lock_guard lock(mutex_);
    present = hooks_;
  }
  for (const auto& [id, hook] : present) {
    try {
      hook();
    } catch (const std::exception& error) {
      log_error("abort hook " + std::to_string(id) + " has failed: " + error.what());
    }
  }
}

void AbortHooks::watch(const std::shared_ptr<Ticket>& ticket,
                       const std::shared_ptr<Completions>& completions) {
  {
    const std::lock_guard lock(mutex_);
    if (hooks_.empty()) return;
  }
  ticket->on_done([hooks = shared_from_this(), completions, done = ticket.get()] {
    if (is_loss(done->error())) completions->run([hooks] { hooks->call(); }, /*apart=*/true);
  });
}

}  // namespace pccl
