// How many bulk lanes a link uses: more while more of them carry more, fewer when as much goes over
// fewer. Pure: a function of what the link has carried.
//
// A TCP connection over a long way carries what its window lets it, and that shrinks with each lost
// packet (Mathis et al. 1997: by 1 / RTT and 1 / sqrt(loss)), so on long or lossy ways several fill
// a line that one cannot fill. On a short way one connection is the fastest.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pccl {

class LaneCount {
 public:
  LaneCount(std::size_t least, std::size_t most)
      : least_(std::max<std::size_t>(1, least)), limit_(std::max(least_, most)) {}

  /// What a link that always had something to send has carried since the last call.
  struct Look {
    std::uint64_t busy_us = 0;
    std::uint64_t bytes = 0;  // that have arrived
    std::uint64_t round_trip_us = 0;
    bool crowded = false;                // the line carries all that it can
    std::size_t most = ~std::size_t{0};  // lanes that are worth a trial
    bool full = false;                   // and neither losses nor others' queues show it
    bool by_losses = false;              // a lost packet halves the rate of its lane
    std::uint64_t sent_bytes = 0;        // with those that were sent again
    std::uint64_t resent_bytes = 0;
  };
  /// Returns the number of bulk lanes to use from now on.
  std::size_t look(const Look& look);
  [[nodiscard]] std::size_t wanted() const { return wanted_; }

 private:
  enum class Trial : std::uint8_t { none, more, fewer };
  [[nodiscard]] double line_bytes(double rate, const Look& look) const;
  [[nodiscard]] bool needs_more(double rate, const Look& look);
  void window_over(double rate, bool crowded);
  void goes_on(double rate, bool crowded);
  [[nodiscard]] std::size_t more_than(bool crowded) const;
  void begin(Trial trial, std::size_t lanes);
  void settle(std::size_t lanes);

  std::size_t least_;
  std::size_t limit_;
  std::size_t most_ = limit_;
  std::size_t needed_ = least_;  // no trial goes below
  std::size_t wanted_ = least_;
  std::size_t base_ = least_;  // the number before the trial
  double base_rate_ = 0;       // bytes a microsecond with it, over some windows
  Trial trial_ = Trial::none;
  int windows_ = 0;        // of the trial
  double trial_rate_ = 0;  // the sum of its windows
  int slow_windows_ = 0;   // one after the other
  bool fewer_next_ = false;
  std::uint64_t hold_ = 0;     // windows until the next trial
  std::uint64_t settled_ = 0;  // trials after which it has settled
  std::uint64_t busy_us_ = 0;
  std::uint64_t crowded_us_ = 0;  // of the busy ones
  std::uint64_t full_us_ = 0;
  std::uint64_t bytes_ = 0;
  double sent_ = 0;  // bytes; the older they are the less they count
  double resent_ = 0;
  bool settling_ = false;  // the number has changed: connections find their rates first
};

}  // namespace pccl
