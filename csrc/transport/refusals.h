// The connections that a port has refused. Strangers decide how many there are and what they say:
// the log gets some of the lines (base/line_limit.h). While very many connections fail, the next
// ones of the senders that fail are not listened to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "base/line_limit.h"
#include "transport/clock.h"

namespace pccl {

/// In a second with more refusals than that a network that was refused in it is turned away for the
/// rest of the second, unless a connection of it was proven within the last kProvenMs: whoever is
/// in the run comes in again, and its neighbours, too. A handshake costs some hundred microseconds
/// of CPU, the end of an accepted connection ten.
inline constexpr std::size_t kRefusedOfAllMax = 50;
inline constexpr std::uint64_t kProvenMs = 24ULL * 3600 * 1000;
// Networks; then the one that was proven first goes.
inline constexpr std::size_t kProvenMax = 4096;

/// On the clock's thread.
class Refusals {
 public:
  explicit Refusals(const Clock& clock) : clock_(clock) {}
  void refused(const std::string& remote_host, const std::string& reason);
  /// A connection from there has ended before it was proven: it counts, and makes no line.
  void gone(const std::string& remote_host);
  /// A connection from there has proven itself.
  void proven(const std::string& remote_host);
  /// Is this the time to turn away a connection from there unread?
  [[nodiscard]] bool too_often(const std::string& remote_host);

 private:
  void next_second();

  const Clock& clock_;
  LineLimit lines_;              // of each network (network_of)
  std::uint64_t second_ms_ = 0;  // when it began
  std::size_t refused_ = 0;      // in this second
  std::set<std::string> refused_networks_;
  std::map<std::string, std::uint64_t> proven_;  // network -> when, the last time
};

}  // namespace pccl
