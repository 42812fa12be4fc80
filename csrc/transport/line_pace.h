// How fast a link sends: no faster than its line carries.
//
// Several connections that each look for their own share of a line send more than the line carries
// between them (BBR keeps up to two round trips of data under way on each): its queue fills, a
// sixth of the bytes and more are lost and sent again, and small operations wait behind the queue.
// So while a line is crowded, its connections together are held to what arrives, and to more than
// that for a while now and then: so a line that has become faster is found, and one whose losses
// and queues others make keeps its rate. Connections that go by losses are held for good once
// they have filled their line: each time that they overfill the queue most of them lose packets at
// once, and then they leave a part of the line empty for seconds. Pure: a function of what the link
// has seen.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace pccl {

class LinePace {
 public:
  static constexpr std::size_t kWindows = 8;  // so long is known what has arrived
  /// What has been seen since the last call while the link always had something to send.
  struct Look {
    std::uint64_t busy_us = 0;
    std::uint64_t arrived_bytes = 0;
    std::uint64_t sent_bytes = 0;  // with those that were sent again
    std::uint64_t resent_bytes = 0;
    std::uint64_t least_trip_us = 0;
    std::uint64_t trip_us = 0;
    bool by_losses = false;  // connections for which a lost packet halves their rate
    std::uint64_t begun_us = ~std::uint64_t{0};  // for so long, at the end, it has had something
  };
  /// Returns `limit`.
  std::uint64_t look(const Look& look);
  /// The bytes a second that all connections of the link may send; 0: no limit.
  [[nodiscard]] std::uint64_t limit() const { return limit_; }
  /// Did the line carry all that it can when it was last looked at?
  [[nodiscard]] bool crowded() const { return crowded_; }
  /// Or lately, before the limit let its queue go?
  [[nodiscard]] bool crowded_lately() const { return limit_ > 0 && quiet_windows_ < kWindows; }

 private:
  Look window_;                                  // trip_us: the sum over its microseconds
  std::array<std::uint64_t, kWindows> rates_{};  // of the last windows, bytes a second
  std::size_t next_ = 0;
  std::size_t seen_ = 0;             // windows, at most kWindows
  std::size_t turn_ = 1;             // of the crowded windows
  std::uint64_t quiet_windows_ = 0;  // since the last crowded one
  double known_ = 0;  // the best rate of all windows; the older it is the less it counts
  std::uint64_t limit_ = 0;
  bool crowded_ = false;
};

}  // namespace pccl
