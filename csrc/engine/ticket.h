// The outcome of a call that was posted to the engine, for which a thread of the program waits.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "base/sites.h"
#include "wire/messages.h"

namespace pccl {

/// The outcome of a posted call. Completed exactly once, on the thread that drives the engine.
class Ticket {
 public:
  /// Waits up to `timeout_ms` (nullopt: until the outcome; every posted call has a deadline).
  /// False: there is no outcome yet.
  bool wait(std::optional<std::uint64_t> timeout_ms);
  [[nodiscard]] bool done() const;
  /// After done(): the error; code none: the call has succeeded.
  [[nodiscard]] Error error() const;
  /// Calls `function` when the outcome is there, on the engine's thread; if it is there already, at
  /// once. `function` must not block and not take the GIL.
  void on_done(std::function<void()> function);

  void complete(Error error);  // by the engine

  // Set before completion, read after it.
  OpKey op = kNoOp;                  // of a collective that the group has taken
  EpochId epoch;                     // in which a committed one was completed
  std::vector<PeerId> contributors;  // whose contributions a committed collective took
  Sites sites;                       // and at which sites it took them to stand
  std::int32_t source = -1;          // recv: the rank that sent it
  std::uint64_t amount = 0;   // pull: bytes; store: StoreReply::amount; boundary_adopt: 1: yes
  std::vector<Bytes> values;  // store replies
  std::vector<std::string> keys;
  std::vector<std::byte> bytes;  // pull into no memory: the payload

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Error error_;
  std::vector<std::function<void()>> callbacks_;
};

using Tickets = std::vector<std::shared_ptr<Ticket>>;

/// Calls `function`, once, when all tickets have their outcomes, as Ticket::on_done does.
void on_all_done(const Tickets& tickets, std::function<void()> function);

}  // namespace pccl
