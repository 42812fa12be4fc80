// One link: the lanes to one peer, its queues, and where it stands between open and down. Links (in
// links.cpp) owns it, decides, and tells the owner above; the link moves bytes and reports to
// Links.
//
// Its first lane makes it; others join it at any time. A lane that joins is part of the link for
// the side that accepted it before it is for the side that dialled it. So the former sends nothing
// over it until the latter has said `joined` there: until then the lane may vanish, and nothing is
// lost. From then on it is as needed as the others. A goodbye is said on every lane, so a side that
// has heard it on all the lanes that it has has missed nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/handle.h"
#include "transport/direct_links.h"
#include "transport/lane.h"
#include "transport/lane_dial.h"
#include "transport/loop.h"
#include "transport/transport.h"

namespace pccl {

class Link;

/// What a link tells Links.
class LinkOwner {
 public:
  virtual ~LinkOwner() = default;
  virtual DirectEvents& link_events() = 0;
  virtual void link_sent(const Link& link, const Outgoing& frame) = 0;
  virtual void link_received(std::size_t payload_bytes, FrameType of) = 0;
  virtual void link_lost(Link& link, const std::string& reason) = 0;
  virtual void link_closed(Link& link) = 0;
};

/// On the loop's thread. Ended at once, freed later (it may be inside its own callback).
class Link : public LaneOwner {
 public:
  enum class State : std::uint8_t {
    opening,  // dialling or awaiting
    proven,   // its first lane is there, link_up has not been told yet
    up,
    failed,  // link_down has not been told yet
    closing  // sends its rest, tells nothing
  };
  Link(Loop& loop, LinkOwner& owner, Handle handle, std::uint64_t serial);
  ~Link() override { end(); }

  /// The first lane, the small one. Of all lanes the link is the owner, and reads nothing before
  /// `start`.
  void attach(std::unique_ptr<Lane> lane);
  /// One more lane, which this side has dialled.
  void join(std::unique_ptr<Lane> lane);
  /// One more lane, which the peer has dialled.
  void await(std::unique_ptr<Lane> lane);
  /// For how many lanes more.
  [[nodiscard]] std::size_t room() const;
  void start();
  /// On the small lane, in order: control, or relay.
  void send_message(FrameType type, std::vector<std::byte> payload);
  void send_segment(const SegmentHeader& header, const std::byte* payload, MemoryToken token,
                    std::uint64_t cookie);
  void cancel(MemoryToken token);
  void close();
  void end();

  [[nodiscard]] PeerId peer() const { return handle.peer; }
  [[nodiscard]] std::size_t queued_bytes() const { return queued_bytes_; }

  // Of Links: how it is being opened.
  State state = State::opening;
  Handle handle;
  std::uint64_t serial = 0;  // tells this link from earlier ones to the same peer
  std::uint64_t number = 0;  // names it between the two peers: a secret of theirs, which lanes tell
  std::string address;       // where its first lane has reached the peer, if this side dialled it
  std::unique_ptr<LaneDial> dial;  // of the first lane
  std::list<std::unique_ptr<LaneJoin>> joining;
  std::unique_ptr<Timer> deadline;
  std::unique_ptr<Timer> retry;
  std::uint64_t deadline_at_ms = 0;
  std::uint64_t deadline_after_ms = 0;
  std::uint64_t backoff_ms = 0;
  std::uint64_t refused_since_ms = 0;  // 0: not refused the last time
  std::uint64_t refused_long_ms = 0;   // a refusal counts when it lasts that long
  std::uint64_t proven_at_ms = 0;
  std::string last_failure;

 private:
  void lane_message(FrameType type, std::span<const std::byte> payload) override;
  Placement lane_segment_header(const SegmentHeader& header) override;
  void lane_segment(const SegmentHeader& header, const Placement& at) override;
  void lane_received(std::size_t payload_bytes, FrameType of) override;
  void lane_sent(const Outgoing& frame) override;
  std::optional<Outgoing> lane_next(const Lane& lane) override;
  void lane_joined(Lane& lane) override;
  void lane_over(Lane& lane, const std::string& reason, bool broken) override;
  void lane_closed(Lane& lane) override;

  struct Held {
    std::unique_ptr<Lane> lane;
    std::unique_ptr<Timer> awaited;  // ends it; null: it is joined
    bool over = false;               // nothing comes over it any more
    [[nodiscard]] bool vanished() const { return over && awaited != nullptr; }
  };
  [[nodiscard]] Held& held(const Lane& lane);
  [[nodiscard]] bool carries_bulk(const Held& held) const;

  Loop& loop_;
  LinkOwner& owner_;
  std::vector<Held> lanes_;
  std::size_t bulk_lanes_ = 0;  // joined ones; without any the small lane does their work
  bool started_ = false;
  std::deque<Outgoing> bulk_;  // taken by whichever bulk lane can write
  std::size_t queued_bytes_ = 0;
};

}  // namespace pccl
