#include "transport/link_words.h"

#include "base/text.h"

namespace pccl {

std::string slow_link_text(const RateFall::Fall& fall) {
  return "the link carries " + bytes_text(fall.now) + "/s, for " + seconds(fall.for_ms) +
         " in which data waited; before it carried " + bytes_text(fall.before) +
         "/s. Look at the line, at the load of that host, and at who else sends to it "
         "(pccl.links() has bytes_resent, round_trip_s and limit)";
}

std::string small_pass_text(std::uint64_t for_ms, bool small_packets) {
  const std::string seen =
      "for " + seconds(for_ms) +
      " nothing of the large data that this process sends has arrived there, although TCP has sent "
      "it again, while small messages came from there. ";
  if (small_packets) {
    return seen +
           "The packets are small already (1,280 bytes at most), so look for a firewall "
           "that holds these connections back";
  }
  return seen +
         "It is so where a path has begun to swallow packets above some size (set the MTU "
         "of the interface to that of the tunnel, or let ICMP pass), or where a firewall "
         "holds these connections back";
}

}  // namespace pccl
