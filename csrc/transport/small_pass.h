// Sees that large data do not pass over a link while small messages do: nothing of what the bulk
// lanes have sent arrives at the other machine, TCP sends it again, and messages of the peer come.
// So it is where a path begins to swallow packets above some size, or where a firewall holds back
// these connections alone: the two look alike from here. A process that is stopped sends no
// messages, and one that does not read has nothing sent again. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace pccl {

class SmallPass {
 public:
  static constexpr std::uint64_t kSeenMs = 10'000;  // so long nothing arrives
  static constexpr std::uint64_t kMessages = 3;     // that have come in the last part of that time

  struct Look {
    std::uint64_t now_ms = 0;
    bool sends = false;               // large data wait, or have not arrived
    std::size_t bulk_lanes = 0;       // that are there
    std::uint64_t arrived_bytes = 0;  // of the lanes that carry large data
    std::uint64_t resent_bytes = 0;   // by TCP, of all lanes
    std::uint64_t messages = 0;       // that have come from the peer
  };
  /// To be called every 50 ms or so while the link has something to send, and once when it has
  /// nothing more. True: it has just begun to be so.
  bool look(const Look& look);
  /// Since when nothing large has arrived, if it is so.
  [[nodiscard]] std::optional<std::uint64_t> since_ms() const {
    return found_ ? std::optional(since_ms_) : std::nullopt;
  }

 private:
  void begin(const Look& look);

  Look last_;
  bool busy_ = false;
  bool found_ = false;
  std::uint64_t since_ms_ = 0;
  std::uint64_t arrived_ = 0;              // then
  std::uint64_t resent_ = 0;               // since then
  std::optional<std::uint64_t> messages_;  // when a third of kSeenMs had passed
};

}  // namespace pccl
