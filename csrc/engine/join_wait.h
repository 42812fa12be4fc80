// The wait of the program in `join`, until the run is founded: its ticket and its time-outs. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/limits.h"
#include "engine/ticket.h"

namespace pccl {

class JoinWait {
 public:
  enum class Verdict : std::uint8_t {
    none,        // nothing has to be done, or the wait has ended
    say,         // the wait takes long: say so once
    no_master,   // no master has welcomed this peer in time: the join fails
    not_founded  // the run was not founded in time: the join fails
  };

  explicit JoinWait(std::shared_ptr<Ticket> ticket) : ticket_(std::move(ticket)) {}

  /// Ends the wait; does nothing if it has ended. Code none: the run is founded.
  void end(Error error) {
    if (ticket_) std::exchange(ticket_, nullptr)->complete(std::move(error));
  }
  /// Called once a tick. `welcomed`: a master in charge has answered. `connect_ms` and
  /// `founding_ms`: the limits of the wait for that answer and of the whole wait.
  [[nodiscard]] Verdict tick(std::uint64_t elapsed_ms, bool welcomed, std::uint64_t connect_ms,
                             std::uint64_t founding_ms) {
    if (!ticket_) return Verdict::none;
    waited_ms_ += elapsed_ms;
    if (!welcomed && waited_ms_ >= connect_ms) return Verdict::no_master;
    if (waited_ms_ >= founding_ms) return Verdict::not_founded;
    if (!welcomed || waited_ms_ < kSayWaitingMs) return Verdict::none;
    return std::exchange(said_, true) ? Verdict::none : Verdict::say;
  }

 private:
  std::shared_ptr<Ticket> ticket_;  // null: the wait has ended
  std::uint64_t waited_ms_ = 0;
  bool said_ = false;
};

}  // namespace pccl
