// How often a master says who is in the run: so often to each address in a second, and so often to
// all. One address that asks without end leaves the others their answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace pccl::master {

inline constexpr std::size_t kStatusPerSecondMax = 10;  // answers to one address
inline constexpr std::size_t kStatusOfAllMax = 50;      // to all together

class StatusLimit {
 public:
  /// May a request from this host be answered now? Then it is counted.
  [[nodiscard]] bool allows(const std::string& host, std::uint64_t now_ms) {
    if (now_ms - since_ms_ >= 1000) {
      since_ms_ = now_ms;
      all_ = 0;
      of_.clear();
    }
    if (all_ >= kStatusOfAllMax || of_[host] >= kStatusPerSecondMax) return false;
    ++of_[host];
    ++all_;
    return true;
  }

 private:
  std::uint64_t since_ms_ = 0;
  std::size_t all_ = 0;                    // answers in the second from then on
  std::map<std::string, std::size_t> of_;  // of each host; kStatusOfAllMax hosts at most
};

}  // namespace pccl::master
