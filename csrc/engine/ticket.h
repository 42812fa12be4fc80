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
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "base/sites.h"
#include "wire/messages.h"

namespace pccl {

// What calls bring besides success.
struct CollectiveResult {
  OpKey op = kNoOp;                  // that the group has given it
  EpochId epoch;                     // in which it was committed, in an elastic group
  std::vector<PeerId> contributors;  // whose contributions it took
  Sites sites;                       // and at which sites it took them to stand
};
struct ReceiveResult {
  std::int32_t source = -1;  // the rank that has sent it
};
struct StoreResult {  // as in StoreReply
  std::vector<Bytes> values;
  std::vector<std::string> keys;
  std::int64_t amount = 0;
};
struct PullResult {
  std::vector<std::byte> bytes;  // if they were to go to no memory of the caller
};
struct AdoptionResult {
  bool adopted = false;
};

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

  // By the engine.
  /// What the call brings; empty at first. A call brings one kind of result.
  template <typename Kind>
  [[nodiscard]] Kind& result() {
    if (std::holds_alternative<std::monostate>(result_)) result_.emplace<Kind>();
    return std::get<Kind>(result_);
  }
  /// What it brings so far; null: nothing.
  template <typename Kind>
  [[nodiscard]] Kind* find() {
    return std::get_if<Kind>(&result_);
  }
  void complete(Error error);

  // After done().
  /// What the call has brought; an empty one if it has brought nothing.
  template <typename Kind>
  [[nodiscard]] Kind take() {
    Kind* const there = find<Kind>();
    return there == nullptr ? Kind() : std::move(*there);
  }
  template <typename Kind>
  [[nodiscard]] const Kind& seen() const {
    static const Kind nothing{};
    const Kind* const there = std::get_if<Kind>(&result_);
    return there == nullptr ? nothing : *there;
  }

 private:
  std::variant<std::monostate, CollectiveResult, ReceiveResult, StoreResult, PullResult,
               AdoptionResult>
      result_;
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
