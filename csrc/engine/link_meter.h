// Measures what links to other members carry. Where something is known of a link, what operations
// send over it is watched first, and may be enough. Else segments are sent whose payload means
// nothing and that the receiver drops, and how much arrives is the answer; what operations send
// meanwhile counts too. One link at a time; engine's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/context.h"

namespace pccl {

/// The fastest stretch of what has arrived over a link. Pure.
class FastestStretch {
 public:
  /// Stretches are at least so long.
  explicit FastestStretch(std::uint64_t least_ms) : least_ms_(least_ms) {}
  /// So many bytes have arrived until now; both numbers grow.
  void saw(std::uint64_t now_ms, std::uint64_t bytes);
  /// Bytes a second; before a stretch is over: of all that was seen.
  [[nodiscard]] std::uint64_t rate() const;

 private:
  std::uint64_t least_ms_;
  std::deque<std::pair<std::uint64_t, std::uint64_t>> seen_;  // of the last stretch
  std::uint64_t best_ = 0;
};

class LinkMeter : public SegmentOwner {
 public:
  /// `rate`: bytes a second, 0 if the link could not be measured; `trip_us`: the shortest time
  /// there and back, 0 if it is not known.
  using Done = std::function<void(PeerId peer, std::uint64_t rate, std::uint64_t trip_us)>;
  /// Of links within one machine.
  static constexpr std::uint64_t kLocalRate = std::uint64_t{1} << 36;

  LinkMeter(EngineContext& context, GroupId group, Done done)
      : context_(context), group_(group), done_(std::move(done)) {}
  ~LinkMeter() override { stop(); }
  LinkMeter(const LinkMeter&) = delete;
  LinkMeter& operator=(const LinkMeter&) = delete;

  /// Measures this link when those that were named before are done; `done` follows, later or from
  /// inside this call. `known`, bytes a second: if operations show that the link carries at least
  /// four fifths of it, the answer is the larger of the two, and nothing is sent; 0: not known.
  void measure(PeerId peer, std::uint64_t known);
  /// The link has ended.
  void link_gone(PeerId peer);
  /// Ends without an answer.
  void stop();

  void segment_sent(MemoryToken token, PeerId peer, std::uint32_t index) override;
  void segment_arrived(PeerId, const SegmentHeader&, const Placement&) override {}

 private:
  struct Wanted {
    PeerId peer;
    std::uint64_t known = 0;
  };
  struct Run {
    PeerId peer;
    std::uint64_t known = 0;  // 0: it sends
    std::uint64_t time_ms = 0;
    FastestStretch stretch{0};
    std::uint64_t until_ms = 0;
    std::uint64_t arrived_before = 0;
    std::uint64_t trip_us = 0;
    std::vector<std::byte> payload;
    std::size_t sent = 0;  // segments
    std::size_t on_the_way = 0;
    MemoryToken token = 0;
    std::unique_ptr<Timer> timer;
  };
  void begin(const Wanted& wanted);
  void begin_to_send(const LinkView& link);
  void send_more();
  void look();
  void look_at_operations(const LinkView& link);
  void end(std::uint64_t rate);
  void retire();

  EngineContext& context_;
  GroupId group_;
  Done done_;
  std::unique_ptr<Run> run_;
  std::deque<Wanted> waiting_;
};

}  // namespace pccl
