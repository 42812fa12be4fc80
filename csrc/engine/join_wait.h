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
    none,           // nothing has to be done, or the wait has ended
    say_no_master,  // no master has welcomed this peer yet: say so at once, then after 5, 10, … s
    say,            // the run is not founded yet: say so once
    no_master,      // no master has welcomed this peer in time: the join fails
    not_founded     // the run was not founded in time: the join fails
  };

  explicit JoinWait(std::shared_ptr<Ticket> ticket) : ticket_(std::move(ticket)) {}

  /// Ends the wait; does nothing if it has ended. Code none: the run is founded.
  void end(Error error) {
    if (ticket_) std::exchange(ticket_, nullptr)->complete(std::move(error));
  }
  /// Called once a tick. `welcomed`: a master in charge has answered; `failed`: an attempt to reach
  /// one has failed. `master_ms` and `founding_ms`: the limits of the wait for that answer and of
  /// the whole wait.
  [[nodiscard]] Verdict tick(std::uint64_t elapsed_ms, bool welcomed, bool failed,
                             std::uint64_t master_ms, std::uint64_t founding_ms) {
    if (!ticket_) return Verdict::none;
    waited_ms_ += elapsed_ms;
    if (!welcomed && waited_ms_ >= master_ms) return Verdict::no_master;
    if (waited_ms_ >= founding_ms) return Verdict::not_founded;
    const bool long_wait = waited_ms_ >= kAtOnceMs;
    if (welcomed) return long_wait && !std::exchange(said_, true) ? Verdict::say : Verdict::none;
    const bool due = say_ms_ == 0 ? failed || long_wait : waited_ms_ >= say_ms_;
    if (!due) return Verdict::none;
    say_ms_ = say_ms_ == 0 ? kSayWaitingMs : 2 * say_ms_;
    return Verdict::say_no_master;
  }
  [[nodiscard]] std::uint64_t waited_ms() const { return waited_ms_; }

 private:
  static constexpr std::uint64_t kAtOnceMs = 1000;  // a shorter wait is a part of every start

  std::shared_ptr<Ticket> ticket_;  // null: the wait has ended
  std::uint64_t waited_ms_ = 0;
  std::uint64_t say_ms_ = 0;  // 0: say_no_master was not returned; else when it is the next time
  bool said_ = false;
};

}  // namespace pccl
