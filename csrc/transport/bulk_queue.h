// The large segments that wait for a lane of one link. Operations that send little go first. Every
// second batch of kBatchBytes goes round the larger ones, by size: so an operation of a MiB does
// not wait until one of a GiB is over that was issued before it, and no size waits for ever. Among
// operations of a size the first that has come is the first to be sent: so they end one after the
// other, and those that have ended are not lost with a peer.
#pragma once

#include <array>
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
  static constexpr std::size_t kBatchBytes = 4U << 20;
  /// Sizes, by what an operation has brought here since it last had nothing that waited: up to
  /// kBatchBytes, then each kSizeTimes as large as the one before, and all above.
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
    std::deque<Outgoing> segments;  // at least one
    std::size_t bytes = 0;          // of their payloads
    std::size_t brought = 0;        // with those that have been taken
    std::size_t size = 0;
  };
  using Line = std::list<Waiting>;

  [[nodiscard]] static std::size_t size_of(std::size_t bytes);
  [[nodiscard]] std::size_t smallest() const;
  void begin_batch();
  void leave(Line::iterator waiting);

  std::array<Line, kSizes> lines_;  // by size
  std::unordered_map<MemoryToken, Line::iterator> of_;
  bool smallest_first_ = true;
  std::size_t batch_bytes_ = 0;  // taken of this batch
  std::size_t batch_from_ = 0;   // the size it is of, if not of the smallest
};

}  // namespace pccl
