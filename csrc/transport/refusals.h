// Log lines about connections of strangers, who decide how many there are and what they say: a line
// for each sender and reason, so many of one sender in a minute, so many of all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "transport/clock.h"

namespace pccl {

inline constexpr std::uint64_t kRefusalLogMs = 60000;
inline constexpr std::size_t kRefusalLinesMax = 8;  // of one network (network_of)
inline constexpr std::size_t kRefusalLinesOfAllMax =
    60;  // more than is read, less than fills a disk

/// On the clock's thread. The lines that are left out are counted; the first line of a later minute
/// says how many.
class RefusalLog {
 public:
  explicit RefusalLog(const Clock& clock) : clock_(clock) {}
  void refused(const std::string& remote_host, const std::string& reason);

 private:
  const Clock& clock_;
  std::uint64_t since_ms_ = 0;
  std::size_t lines_ = 0;  // since then
  std::size_t left_out_ = 0;
  std::map<std::string, std::set<std::string>> said_;  // of each network; one for each line
};

}  // namespace pccl
