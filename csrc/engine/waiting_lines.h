// Log lines about calls that wait: of many calls that wait as long, a few have their own lines, and
// one more line counts the others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/limits.h"
#include "base/log.h"

namespace pccl {

/// In each span of kSayWaitingMs there are kSaidAtOnceMax lines at most. Engine's thread only.
class WaitingLines {
 public:
  /// A tick begins.
  void begin(std::uint64_t elapsed_ms) {
    span_over_ = left_ms_ <= elapsed_ms;
    left_ms_ -= std::min(left_ms_, elapsed_ms);
    if (span_over_) said_ = 0;
  }
  /// May a call have a line of its own? Otherwise it is counted.
  [[nodiscard]] bool admit() {
    if (said_ == 0) left_ms_ = kSayWaitingMs;
    if (++said_ <= kSaidAtOnceMax) return true;
    ++unsaid_;
    return false;
  }
  /// The tick ends. Where a span has ended with it, the calls that were counted get their line:
  /// "`calls` have been waiting for as long (7), `which` of them `last`". `last`: the last one that
  /// was counted in this tick; empty: none was.
  void end(const std::string& calls, const std::string& which, std::string last) {
    if (!last.empty()) last_ = std::move(last);
    if (unsaid_ == 0 || !span_over_) return;
    log_info(calls + " have been waiting for as long (" +
             std::to_string(std::exchange(unsaid_, 0)) + "), " + which + " of them " + last_);
  }

 private:
  std::uint64_t left_ms_ = 0;  // of the span
  bool span_over_ = true;      // when the tick began
  std::size_t said_ = 0;       // in the span
  std::size_t unsaid_ = 0;     // since the last line that counts
  std::string last_;
};

}  // namespace pccl
