// The wait of the program in `join`, until the run is founded: its ticket and its time-outs. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
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
  struct Limits {
    std::uint64_t master_ms;    // until a master in charge has answered
    std::uint64_t refused_ms;   // for which all attempts in a row may meet another program
    std::uint64_t founding_ms;  // of the whole wait
  };
  struct Seen {
    bool welcomed;  // a master in charge has answered
    bool failed;    // an attempt to reach a master has failed
    bool refused;   // at each address of the list another program has answered last
  };

  JoinWait(std::shared_ptr<Ticket> ticket, const Limits& limits)
      : ticket_(std::move(ticket)), limits_(limits) {}

  /// Ends the wait; does nothing if it has ended. Code none: the run is founded.
  void end(Error error) {
    if (ticket_) std::exchange(ticket_, nullptr)->complete(std::move(error));
  }
  /// Called once a tick.
  [[nodiscard]] Verdict tick(std::uint64_t elapsed_ms, const Seen& seen) {
    if (!ticket_) return Verdict::none;
    waited_ms_ += elapsed_ms;
    // A master may be started where another program answers now, so the other program gets its
    // whole limit, however long the wait was before.
    if (!seen.refused) {
      refused_since_ms_.reset();
    } else if (!refused_since_ms_) {
      refused_since_ms_ = waited_ms_;
    }
    if (!seen.welcomed && left_ms() == 0) return Verdict::no_master;
    if (waited_ms_ >= limits_.founding_ms) return Verdict::not_founded;
    const bool long_wait = waited_ms_ >= kAtOnceMs;
    if (seen.welcomed) {
      return long_wait && !std::exchange(said_, true) ? Verdict::say : Verdict::none;
    }
    const bool due = say_ms_ == 0 ? seen.failed || long_wait : waited_ms_ >= say_ms_;
    if (!due) return Verdict::none;
    say_ms_ = say_ms_ == 0 ? kSayWaitingMs : 2 * say_ms_;
    return Verdict::say_no_master;
  }
  [[nodiscard]] std::uint64_t waited_ms() const { return waited_ms_; }
  /// Until the join fails for want of a master, if nothing else is seen meanwhile.
  [[nodiscard]] std::uint64_t left_ms() const {
    std::uint64_t end_ms = limits_.master_ms;
    if (refused_since_ms_) end_ms = std::min(end_ms, *refused_since_ms_ + limits_.refused_ms);
    return end_ms - std::min(end_ms, waited_ms_);
  }

 private:
  static constexpr std::uint64_t kAtOnceMs = 1000;  // a shorter wait is a part of every start

  std::shared_ptr<Ticket> ticket_;  // null: the wait has ended
  Limits limits_;
  std::uint64_t waited_ms_ = 0;
  std::optional<std::uint64_t> refused_since_ms_;  // of the wait; empty: no other program answers
  std::uint64_t say_ms_ = 0;  // 0: say_no_master was not returned; else when it is the next time
  bool said_ = false;
};

}  // namespace pccl
