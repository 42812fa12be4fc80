// The large segments that wait for a lane of one link. Operations take turns: each sends
// kTurnBytes, then the next one that has something to send. So an operation of a MiB does not wait
// until one of a GiB is over that was issued before it, and operations that are no larger than a
// turn go in the order in which they were issued.
#pragma once

#include <cstddef>
#include <deque>
#include <list>
#include <unordered_map>

#include "transport/lane.h"

namespace pccl {

/// Used by one link, on the loop's thread. Segments of one memory (`Outgoing::token`) belong to one
/// operation, and keep their order.
class BulkQueue {
 public:
  static constexpr std::size_t kTurnBytes = 4U << 20;

  void push(Outgoing segment);
  /// Takes the next segment; not of an empty queue.
  [[nodiscard]] Outgoing pop();
  [[nodiscard]] bool empty() const { return turns_.empty(); }
  /// Drops what waits under the token. Returns its bytes of payload.
  std::size_t cancel(MemoryToken token);
  void clear();

 private:
  struct Waiting {
    MemoryToken token = 0;
    std::deque<Outgoing> segments;  // at least one
  };
  using Turns = std::list<Waiting>;

  void leave(Turns::iterator waiting);

  Turns turns_;  // it is the first one's turn
  std::unordered_map<MemoryToken, Turns::iterator> of_;
  std::size_t turn_bytes_ = 0;  // that it has sent
};

}  // namespace pccl
