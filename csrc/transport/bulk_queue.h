// The large segments that wait for a lane of one link. Operations of which little waits go first,
// but for every second turn of kTurnBytes, which is the oldest one's: so an operation of a MiB does
// not wait until one of a GiB is over that was issued before it, and no operation waits for ever.
// Among operations of a size the first that has come is the first to be sent: so they end one after
// the other, and those that have ended are not lost with a peer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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
  /// Sizes: up to kTurnBytes, then each kSizeTimes as large as the one before, and all above.
  static constexpr std::size_t kSizes = 5;
  static constexpr std::size_t kSizeTimes = 4;

  /// Changes nothing if it throws std::bad_alloc.
  void push(Outgoing segment);
  /// Takes the next segment; not of an empty queue.
  [[nodiscard]] Outgoing pop();
  [[nodiscard]] bool empty() const { return of_.empty(); }
  /// Drops what waits under the token. Returns its bytes of payload.
  std::size_t cancel(MemoryToken token);
  void clear();

 private:
  struct Waiting {
    MemoryToken token = 0;
    std::uint64_t since = 0;        // counts up
    std::deque<Outgoing> segments;  // at least one
    std::size_t bytes = 0;          // of their payloads
    std::size_t size = 0;           // the largest one, until nothing of it waits
  };
  using Line = std::list<Waiting>;

  [[nodiscard]] static std::size_t size_of(std::size_t bytes);
  [[nodiscard]] Line::iterator smallest();
  [[nodiscard]] Line::iterator oldest();
  void leave(Line::iterator waiting);

  std::array<Line, kSizes> lines_;  // by size
  std::unordered_map<MemoryToken, Line::iterator> of_;
  std::uint64_t came_ = 0;
  bool turn_of_oldest_ = false;
  std::size_t turn_bytes_ = 0;  // sent in this turn
};

}  // namespace pccl
