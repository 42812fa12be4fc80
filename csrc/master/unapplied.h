// Counts the messages of peers that wait until the register is written. Bounded, for each peer and
// for all together. Keeps no message: run_server.h has them, in the order of all events.
#pragma once

#include <cstddef>
#include <map>

#include "base/ids.h"

namespace pccl::master {

inline constexpr std::size_t kUnappliedMessageBytes = 256;    // each message counts so many more
inline constexpr std::size_t kUnappliedBytesMax = 16U << 20;  // of one peer
inline constexpr std::size_t kUnappliedBytesOfAllMax = 256U << 20;  // beyond it only peers with
inline constexpr std::size_t kUnappliedBytesInAnyCase = 64U << 10;  // at most so many send more

class Unapplied {
 public:
  /// False: it would be too much. The message is not counted then.
  [[nodiscard]] bool add(PeerId peer, std::size_t message_bytes) {
    const std::size_t bytes = message_bytes + kUnappliedMessageBytes;
    const auto at = bytes_.find(peer);
    const std::size_t of_peer = (at == bytes_.end() ? 0 : at->second) + bytes;
    if (of_peer > kUnappliedBytesMax) return false;
    if (of_peer > kUnappliedBytesInAnyCase && of_all_ + bytes > kUnappliedBytesOfAllMax) {
      return false;
    }
    bytes_[peer] = of_peer;
    of_all_ += bytes;
    return true;
  }
  /// A message that was counted waits no more.
  void remove(PeerId peer, std::size_t message_bytes) {
    const std::size_t bytes = message_bytes + kUnappliedMessageBytes;
    const auto at = bytes_.find(peer);
    at->second -= bytes;
    of_all_ -= bytes;
    if (at->second == 0) bytes_.erase(at);
  }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }

 private:
  std::map<PeerId, std::size_t> bytes_;  // of the peers with a message
  std::size_t of_all_ = 0;
};

}  // namespace pccl::master
