#include "engine/calls.h"

#include <new>

#include "base/log.h"

namespace pccl {

void Calls::start(Loop& loop, std::function<void(const Error&)> broken) {
  driver_.emplace(loop, [this, end = std::move(broken)](const std::string& what) {
    try {
      ending_->set({ErrorCode::broken, "the engine has stopped: " + what});
    } catch (const std::bad_alloc&) {
      log_error("no memory for the reason: calls say that the engine has been closed");
    }
    stopped_ = true;
    end(ending_->error());
  });
}

bool Calls::post(std::function<void()> function, Cost cost) const {
  if (stopped_ || !driver_) return false;
  driver_->post(std::move(function), cost);
  return true;
}

bool Calls::wait(Ticket& ticket, std::optional<std::uint64_t> timeout_ms) const {
  if (!forked_) {
    if (driver_->wait(ticket, timeout_ms)) return true;
    if (!driver_->ended()) return false;
  }
  ticket.complete(ending_->error());  // nobody else will
  return true;
}

bool Calls::stop(std::function<void()> last) {
  if (!driver_ || stopped_.exchange(true)) return false;
  if (last) driver_->post(std::move(last), Cost::large);
  return true;
}

void Calls::forked() {
  // Another thread of the parent may hold a lock for ever: none is taken.
  ending_.swap(forked_ending_);
  forked_ = true;
  stopped_ = true;
  if (driver_) driver_->forget();
}

}  // namespace pccl
