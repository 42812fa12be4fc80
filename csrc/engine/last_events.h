// The last events of an engine, for the report of a broken invariant: a ring of short entries,
// which become text only when they are read. Engine's thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/ids.h"

namespace pccl {

class LastEvents {
 public:
  static constexpr std::size_t kEventsMax = 256;

  /// `what` lives as long as the program (a literal, the name of a message).
  void note(std::uint64_t now_ms, std::string_view what, PeerId peer = {}, GroupId group = {},
            std::uint64_t number = 0) {
    ring_[count_++ % kEventsMax] = {now_ms, what, peer, group, number};
  }
  /// One line for each, the oldest first; `now_ms` is when they are read.
  [[nodiscard]] std::string text(std::uint64_t now_ms) const {
    std::string lines;
    for (std::size_t i = count_ - std::min(count_, kEventsMax); i < count_; ++i) {
      const Entry& e = ring_[i % kEventsMax];
      lines += "\n  -" + std::to_string(now_ms - e.at_ms) + " ms " + std::string(e.what);
      if (e.peer != PeerId{}) lines += " peer " + to_string(e.peer);
      if (e.group != GroupId{}) lines += " group " + std::to_string(e.group.value);
      if (e.number != 0) lines += " " + std::to_string(e.number);
    }
    return lines;
  }

 private:
  struct Entry {
    std::uint64_t at_ms = 0;
    std::string_view what;
    PeerId peer;
    GroupId group;
    std::uint64_t number = 0;
  };
  std::array<Entry, kEventsMax> ring_;
  std::size_t count_ = 0;
};

}  // namespace pccl
