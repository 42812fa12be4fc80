// Which log lines are written where strangers decide how many there are and what they say: one for
// each sender and text, so many of one sender in a minute, so many of all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace pccl {

inline constexpr std::uint64_t kLineLimitMs = 60000;
inline constexpr std::size_t kLinesOfOneMax = 8;   // of one sender
inline constexpr std::size_t kLinesOfAllMax = 60;  // more than is read, less than fills a disk

/// The lines that are left out are counted; the first line of a later minute says how many.
class LineLimit {
 public:
  /// None: the line is left out. Otherwise the return value goes behind it: empty, or
  /// " (and 7 more before)".
  [[nodiscard]] std::optional<std::string> admit(const std::string& sender, const std::string& text,
                                                 std::uint64_t now_ms);

 private:
  std::uint64_t since_ms_ = 0;
  std::size_t lines_ = 0;  // since then
  std::size_t left_out_ = 0;
  std::map<std::string, std::set<std::string>> said_;  // texts of each sender; one for each line
};

}  // namespace pccl
