// Calls of a newcomer in a run without boundaries: they wait until the newcomer is admitted. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "engine/ticket.h"

namespace pccl {

class Door {
 public:
  struct Call {
    OpRequest request;
    std::shared_ptr<Ticket> ticket;
    std::uint64_t waited_ms = 0;
  };

  void push(OpRequest request, std::shared_ptr<Ticket> ticket) {
    calls_.push_back({std::move(request), std::move(ticket)});
  }
  [[nodiscard]] bool empty() const { return calls_.empty(); }
  /// The calls that use some of this memory.
  [[nodiscard]] Tickets users_of(const std::vector<Buffer>& memory) const {
    Tickets tickets;
    for (const Call& call : calls_) {
      if (touch(call.request.inputs, memory) || touch(call.request.outputs, memory)) {
        tickets.push_back(call.ticket);
      }
    }
    return tickets;
  }
  /// Takes out all calls, in the order in which they came.
  [[nodiscard]] std::deque<Call> take() { return std::exchange(calls_, {}); }
  /// Takes out the calls that have timed out, in the order in which they came. `timeout_ms`: the
  /// time-out of a call that has none of its own; 0: none.
  [[nodiscard]] std::vector<Call> expired(std::uint64_t elapsed_ms, std::uint64_t timeout_ms) {
    const auto is_over = [&](const Call& call) {
      const std::uint64_t own = call.request.timeout_ms;
      const std::uint64_t limit = own > 0 ? own : timeout_ms;
      return limit > 0 && call.waited_ms >= limit;
    };
    for (Call& call : calls_) call.waited_ms += elapsed_ms;
    std::vector<Call> over;
    over.reserve(static_cast<std::size_t>(std::count_if(calls_.begin(), calls_.end(), is_over)));
    for (Call& call : calls_) {
      if (is_over(call)) over.push_back(std::move(call));
    }
    std::erase_if(calls_, [](const Call& call) { return call.ticket == nullptr; });
    return over;
  }

 private:
  std::deque<Call> calls_;
};

}  // namespace pccl
