// One link: the lanes to one peer, its queues, and where it stands between open and down. Links (in
// links.cpp) owns it, decides, and tells the owner above; the link moves bytes and reports to
// Links.
//
// The first lane makes the link; other lanes join at any time. The side that accepted a joining
// lane counts the lane as part of the link earlier than the side that dialled it. So the acceptor
// sends nothing over the lane until the dialler has sent `joined` on it: until then the lane may
// vanish without a loss. The acceptor holds the lane until then as long as the connection and the
// link last: a dialler that has stopped for a while would miss a lane that had ended. A goodbye is
// sent on every lane, so a side that has received it on all its lanes has missed no frame, unless a
// lane was lost meanwhile.
//
// A bulk lane may be lost without its link if all that was lost with it are slices, or nothing:
// each side sends its own again over the other lanes. Slices of a lane that is late go over others
// too, and the lane takes no more until it has brought over what it has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/handle.h"
#include "transport/bulk_queue.h"
#include "transport/direct_links.h"
#include "transport/lane.h"
#include "transport/lane_dial.h"
#include "transport/loop.h"
#include "transport/rate_fall.h"
#include "transport/slices.h"
#include "transport/small_pass.h"
#include "transport/stragglers.h"
#include "transport/transport.h"
#include "transport/widening.h"

namespace pccl {

class Link;

/// The calls of a link to Links.
class LinkOwner {
 public:
  virtual ~LinkOwner() = default;
  virtual DirectEvents& link_events() = 0;
  virtual void link_sent(const Link& link, const Outgoing& frame) = 0;
  virtual void link_received(std::size_t payload_bytes, bool data) = 0;
  virtual void link_lost(Link& link, const std::string& reason) = 0;
  /// A bulk lane is gone, and the link goes on.
  virtual void link_lacks(Link& link) = 0;
  virtual void link_closed(Link& link) = 0;
};

/// Used on the loop's thread. Links ends a link at once and frees it later, because the link may be
/// inside its own callback.
class Link : public LaneOwner {
 public:
  enum class State : std::uint8_t {
    opening,  // dialling or awaiting
    proven,   // the first lane is there, link_up has not been called yet
    up,
    failed,  // link_down has not been called yet
    closing  // sends the rest of its queue, calls nothing
  };
  Link(LinkOwner& owner, Handle handle, std::uint64_t serial);
  ~Link() override { end(); }

  /// Takes the first lane, the small one. The link owns all its lanes, and reads nothing before
  /// `start`.
  void attach(std::unique_ptr<Lane> lane);
  /// Takes one more lane, which this side has dialled.
  void join(std::unique_ptr<Lane> lane);
  /// Takes one more lane, which the peer has dialled.
  void await(std::unique_ptr<Lane> lane);
  /// The number of lanes that may still join.
  [[nodiscard]] std::size_t room() const;
  void start();
  /// Lets the peer read the area of this process.
  void lend(std::shared_ptr<OwnArea> own) { lanes_.front().lane->lend(std::move(own)); }
  /// Sends large segments over so many bulk lanes of those that are there, from now on: in slices
  /// if they are several, and over a long line always.
  void use(std::size_t bulk_lanes);
  /// Lets its lanes go by a model from now on, where the system lets them, or by losses again.
  void go_by_model(bool by_model);
  /// Holds those lanes together to so many bytes a second; 0: to none.
  void pace(std::uint64_t bytes_per_second);
  [[nodiscard]] LinkLoad load() const;
  /// Lets other lanes send what those hold that have become slow. To be called now and then while
  /// the link sends.
  void mend(std::uint64_t now_ms);
  [[nodiscard]] LinkView view() const;
  [[nodiscard]] std::vector<LaneView> lane_views() const;
  /// Does it stay on this machine, without a network?
  [[nodiscard]] bool local() const { return !lanes_.empty() && lanes_.front().lane->local(); }
  [[nodiscard]] std::size_t bulk_lanes() const { return bulk_lanes_; }
  [[nodiscard]] std::uint64_t lanes_lost() const { return lanes_lost_; }
  // Where one of the next three throws std::bad_alloc, the link has to end: frames of any operation
  // may be lost, or what is half sent cannot go on from a copy.
  /// Sends a control or a relay frame, in order, on the small lane.
  void send_message(FrameType type, std::vector<std::byte> payload);
  /// `place`: of the payload in the area of this process, if it lies there.
  void send_segment(const SegmentHeader& header, const std::byte* payload, MemoryToken token,
                    std::uint64_t cookie, std::optional<AreaPlace> place = {});
  /// Goes on with what other tokens have queued.
  void cancel(MemoryToken token);
  /// Sends what is queued; ends where nothing moves for `quiet_ms`. Called again it changes that
  /// time.
  void close(std::uint64_t quiet_ms);
  /// Has a lane ended so?
  [[nodiscard]] bool gave_up() const;
  void end();

  [[nodiscard]] PeerId peer() const { return handle.peer; }
  [[nodiscard]] std::size_t queued_bytes() const { return queued_bytes_; }
  [[nodiscard]] std::size_t queued_message_bytes() const { return queued_message_bytes_; }
  [[nodiscard]] std::uint64_t messages_received() const { return messages_received_; }

  // Used by Links.
  /// How the link is being opened: until its first lane is there, or the link has failed.
  struct Opening {
    /// What was seen of the first lane's dials.
    [[nodiscard]] std::string text() const;

    std::unique_ptr<LaneDial> dial;  // of the first lane
    std::unique_ptr<Timer> redial;
    std::uint64_t backoff_ms = 0;        // of the last redial after a failure
    std::uint64_t refused_since_ms = 0;  // 0: not refused the last time
    std::uint64_t refused_long_ms = 0;   // a refusal counts when it lasts that long
    std::string last_failure;
    std::unique_ptr<Timer> deadline;
    std::uint64_t deadline_at_ms = 0;
    std::uint64_t deadline_after_ms = 0;
    bool overdue = false;  // the deadline is over, and waits for the answer to a proof sent before
  };
  State state = State::opening;
  std::optional<Opening> opening = Opening();  // there in State::opening
  Handle handle;
  std::uint64_t serial = 0;    // distinguishes this link from earlier ones to the same peer
  std::uint64_t number = 0;    // of LaneHello: a secret of the two peers, by which lanes join
  bool dialled = false;        // by this side
  bool small_packets = false;  // of all its connections
  std::string address;  // the peer's, which the first lane has reached; empty: its unix socket
  std::list<std::unique_ptr<LaneJoin>> joining;
  std::unique_ptr<Widening> widening;  // while the link is up
  std::unique_ptr<Timer> relane;       // dials lost lanes anew
  std::uint64_t proven_at_ms = 0;
  std::uint64_t lacks_until_ms = 0;  // `relane` sees to lost bulk lanes then; 0: none were lost
  std::uint64_t lanes_lost_told = 0;
  // While the link is up: what people should know of it.
  RateFall rate_fall;
  SmallPass small_pass;
  std::uint64_t holds_seen = 0;  // LinkLoad::holds

 private:
  void lane_message(FrameType type, std::span<const std::byte> payload) override;
  Placement lane_segment_header(const SegmentHeader& header) override;
  [[nodiscard]] bool lane_shares(const SegmentHeader& slice) const override {
    return slices_in_.came_twice(slice);
  }
  void lane_part(const SegmentHeader& header, const Placement& at, std::uint32_t offset,
                 std::span<const std::byte> bytes) override;
  void lane_segment(const SegmentHeader& header, const Placement& at) override;
  void lane_segment_lost(const SegmentHeader& header, const Placement& at) override {
    owner_.link_events().segment_lost(peer(), header, at);
  }
  void lane_received(std::size_t payload_bytes, bool data) override;
  void lane_sent(const Outgoing& frame) override;
  std::optional<Outgoing> lane_next(const Lane& lane) override;
  void lane_joined(Lane& lane) override;
  void lane_over(Lane& lane, const std::string& reason, bool broken) override;
  void lane_lost(Lane& lane, const std::string& reason, Leftover left) override;
  void lane_closed(Lane& lane) override;

  struct Held {
    std::unique_ptr<Lane> lane;
    bool awaited = false;       // its dialler has not sent `joined` yet
    bool over = false;          // no frame comes over the lane any more
    bool gone = false;          // and it was no part of the link, or is none any more
    bool late = false;          // until it is drained: others send what it holds
    bool used = false;          // carries large segments
    std::uint64_t pace = 0;     // its share
    std::uint64_t arrived = 0;  // of its bytes, when shares were made
    std::uint64_t carried = 0;  // since the time before
    std::uint64_t delivered = 0;
    bool waits = false;  // since the last look nothing that it had sent has arrived
    LaneProgress progress = {};
  };
  /// What the lanes have done since the last look.
  struct Moved {
    TimeNeeded::Look look;
    bool others_move = false;   // a lane that carries segments has brought something over
    bool recovered = false;     // a late lane has brought over all that it had
    std::uint64_t trip_us = 0;  // the mean round trip of now; 0: not known
  };
  [[nodiscard]] Moved look_at_lanes(std::uint64_t now_ms);
  void pass_on_late(const LinkProgress& link, std::uint64_t stuck_ms);
  [[nodiscard]] Held& held(const Lane& lane);
  void forget_gone();
  bool end_if_over();
  void choose();
  void share_pace(bool anew);
  void hold_one(Held& held);
  [[nodiscard]] bool bulk_waits() const { return !bulk_.empty() || slices_out_.cuts(); }
  void flush_bulk();

  LinkOwner& owner_;
  std::vector<Held> lanes_;
  std::size_t bulk_lanes_ = 0;   // joined ones; without any the small lane does their work
  std::uint64_t mended_ms_ = 0;  // when the lanes were last looked at
  std::uint64_t nothing_waits_since_ms_ = 0;  // 0: bulk waits, or nobody has looked
  TimeNeeded time_needed_;
  std::size_t wanted_lanes_ = kLanesMax;
  bool by_model_ = false;  // by go_by_model
  std::uint64_t pace_ = 0;
  std::size_t used_ = 1;         // lanes between which it was shared
  bool held_alike_ = false;      // they go by losses
  std::uint64_t taken_ = 0;      // frames of the shared queue, by lanes
  std::uint64_t taken_max_ = 0;  // a lane takes no more then; 0: takes as many as it can
  bool started_ = false;
  bool said_carrier_ = false;
  std::uint64_t lanes_lost_ = 0;
  BulkQueue bulk_;     // taken by whichever bulk lane can write
  bool long_ = false;  // its round trip, when it came up
  bool cuts_ = false;  // large segments go in slices
  SlicesOut slices_out_;
  SlicesIn slices_in_;
  std::size_t queued_bytes_ = 0;
  std::size_t queued_message_bytes_ = 0;  // part of it
  std::uint64_t bytes_sent_ = 0;          // payload
  std::uint64_t bytes_received_ = 0;
  std::uint64_t messages_received_ = 0;
};

}  // namespace pccl
