// Links that their owner has closed: each sends the rest of its queue. A link that moves nothing
// for long enough ends; while it moves it is not cut, whatever its rate, but for the limit of
// GoodbyeTime when the process ends. Tells in the log what the process still waits for then, and
// what is lost.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/link.h"
#include "transport/loop.h"
#include "transport/transport.h"

namespace pccl {

/// Used on the loop's thread.
class ClosingLinks {
 public:
  /// `bury`: takes a link that is over.
  ClosingLinks(Loop& loop, std::function<void(std::shared_ptr<Link>)> bury)
      : loop_(loop), bury_(std::move(bury)) {}

  void add(std::shared_ptr<Link> link);
  /// This link is over. Does nothing if it is none of these.
  void over(const Link& link);
  /// Calls `body` with each link, which may be over afterwards.
  void each(const std::function<void(Link&)>& body);
  /// No more links are added. Calls `done` when the last one is over.
  void finish(const GoodbyeTime& time, std::function<void()> done);

 private:
  static void say_lost(const Link& link, const std::string& why);
  void say_waiting();
  void cut_all();
  void finish_if_empty();

  Loop& loop_;
  std::function<void(std::shared_ptr<Link>)> bury_;
  std::vector<std::shared_ptr<Link>> links_;
  std::function<void()> done_;
  std::uint64_t since_ms_ = 0;
  std::uint64_t all_ms_ = 0;
  std::unique_ptr<Timer> limit_;
  std::unique_ptr<Timer> word_;
};

}  // namespace pccl
