// Sees that a link moves far less than it did before, although data wait: its line has become slow,
// or the host at the other end. Compares what arrives while data wait for a second and longer with
// the fastest second of before. Says nothing of a link that is idle or sends small operations only,
// of one that moves nothing at all (a process or a line that has stopped: others see that), of a
// process that sends under PCCL_MAX_RATE, and of one that sends over its other links instead. Pure.
#pragma once

#include <cstdint>
#include <optional>

namespace pccl {

class RateFall {
 public:
  static constexpr std::uint64_t kThirtieth = 30;     // of before: far less
  static constexpr std::uint64_t kSlowMs = 30'000;    // so long, in sum, to be said
  static constexpr std::uint64_t kStillMs = 10'000;   // nothing at all: no slow line
  static constexpr std::uint64_t kAgainMs = 600'000;  // between two that are said

  /// Counts grow for as long as the link is up; one that falls says nothing.
  struct Look {
    std::uint64_t now_ms = 0;
    std::uint64_t waits_since_ms = 0;  // data have waited without a pause; now_ms: none wait
    std::uint64_t arrived_bytes = 0;   // at the other side's machine
    std::uint64_t process_bytes = 0;   // that this process has sent, over all links
    bool held = false;                 // by the rate of the process
  };
  struct Fall {
    std::uint64_t before = 0;  // bytes a second
    std::uint64_t now = 0;
    std::uint64_t for_ms = 0;  // of waiting
  };
  /// To be called every 50 ms or so while the link has something to send. A result: to be said.
  std::optional<Fall> look(const Look& look);

 private:
  void begin(const Look& look);
  void forget_slow();

  Look last_;
  Look begin_;  // of the second that is measured
  bool looks_ = false;
  bool held_ = false;          // in this second
  std::uint64_t before_ = 0;   // bytes a second; the older they are the less they count
  std::uint64_t slow_ms_ = 0;  // in which data waited and far less arrived
  std::uint64_t slow_bytes_ = 0;
  std::uint64_t still_ms_ = 0;
  std::optional<std::uint64_t> said_ms_;
};

}  // namespace pccl
