// The engine without its thread: groups by number, the frames that arrive for them, the tick.
// Everything here runs on the loop's thread; engine.cpp brings calls of other threads to it.
#pragma once

#include <concepts>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <variant>
#include <vector>

#include "engine/elastic_group.h"
#include "engine/fixed_group.h"

namespace pccl {

template <typename T, typename... Those>
concept OneOf = (std::same_as<T, Those> || ...);

class EngineCore : public LinkEvents, public SegmentOwner, private GroupHost {
 public:
  EngineCore(Network& network, const EngineOptions& options);
  ~EngineCore() override;
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  /// Opens the listening port.
  [[nodiscard]] Error listen();
  void set_publish(std::function<void(GroupId, GroupView)> publish);

  void add_fixed(GroupId id, std::string name, std::vector<Handle> members, std::int32_t rank,
                 std::uint64_t timeout_ms, std::shared_ptr<Ticket> connected);
  /// A fixed group of members of the elastic one.
  void add_of_run(GroupId id, std::string name, const std::vector<PeerId>& members,
                  std::int32_t rank, std::uint64_t timeout_ms, std::shared_ptr<Ticket> connected);
  [[nodiscard]] std::vector<Handle> members_of(GroupId fixed_group);
  void join(const JoinOptions& options, std::shared_ptr<Ticket> joined,
            std::function<void(const GroupEvent&)> hooks);
  [[nodiscard]] Group* find(GroupId id);
  [[nodiscard]] ElasticGroup* elastic() { return elastic_; }
  void close(GroupId id, const std::string& failure = {});
  /// Says goodbye to all peers, then calls `done`.
  /// `failure`: the error that ends the program; empty: it ends in good order.
  void shutdown(const std::string& failure, std::function<void()> done);
  /// The loop has stopped because of a bug: logs the state of the engine, and ends every wait with
  /// an error. Throws nothing.
  void broken(const Error& error);

  [[nodiscard]] Links& links() { return *links_; }
  [[nodiscard]] EngineCounters counters() const;
  [[nodiscard]] std::vector<LinkView> link_views() const { return links_->views(); }

  void link_up(PeerId peer) override;
  void link_down(PeerId peer, const std::string& reason, Down how) override;
  void link_trouble(PeerId peer, const std::string& what) override;
  void control_arrived(PeerId peer, std::span<const std::byte> payload) override;
  Placement segment_header(PeerId peer, const SegmentHeader& header) override;
  void segment_part(PeerId peer, const SegmentHeader& header, const Placement& at,
                    std::uint32_t offset, std::span<const std::byte> bytes) override;
  void segment_arrived(PeerId peer, const SegmentHeader& header, const Placement& at) override;
  void segment_lost(PeerId peer, const SegmentHeader& header, const Placement& at) override;
  void segment_sent(PeerId peer, std::uint64_t cookie) override;

 private:
  /// Frames for a group that is not made here yet, because its other members were faster. In the
  /// order of arrival; bounded for each link (kept.h), dropped with their link.
  struct EarlyMessage {
    PeerId from;
    PeerToPeer message;
    Kept kept;
  };
  // GroupHost
  void publish(GroupId group, GroupView view) override;
  void release_link(PeerId peer, bool in_order) override;
  [[nodiscard]] bool is_sibling(PeerId peer) const override;
  [[nodiscard]] bool needed_beside(PeerId peer, GroupId group) const override;

  using Stranger = std::deque<std::variant<EarlyMessage, EarlySegment>>;
  void segment_sent(MemoryToken, PeerId, std::uint32_t) override {}
  void add(GroupId id, std::string name, Result<std::vector<Handle>> members, std::int32_t rank,
           std::uint64_t timeout_ms, std::shared_ptr<Ticket> connected, GroupKind kind);
  /// Null: there is none of this number, or it is the elastic group.
  [[nodiscard]] FixedGroup* find_fixed(GroupId id);
  /// `why`: the failure of the group; none: it was closed in good order.
  void ended(GroupId id, Error why = {});
  [[nodiscard]] bool is_at_door(PeerId peer) const;
  void answer_at_door(PeerId peer, const PeerToPeer& message);
  // Messages for a group that is not here. They may be kept for it as well (control_arrived).
  void on(PeerId from, const AskIssued& m);
  void on(PeerId from, const Farewell& m);
  void on(PeerId from, const Grant& m);
  void on(PeerId from, const Accept& m);
  template <OneOf<Connected, GroupFailed, OpFailed, Want, TellIssued, Announce, Withdraw, Flush,
                  Flushed, Pull, PullReply>
                Message>
  void on(PeerId, const Message&) {}
  void answer_ended(PeerId peer, const PeerToPeer& message);
  void adopt(Group& group);
  void forget_strangers(PeerId peer);
  void link_gone(PeerId peer);
  void tick();
  [[nodiscard]] std::string report() const;
  void evicted(const std::string& why);
  void lost_by_run(const std::vector<PeerId>& lost);
  void run_over(const Error& over);

  Network& network_;
  EngineOptions options_;
  EngineCounters counters_;
  BufferPool pool_;
  std::function<void(GroupId, GroupView)> publish_;  // may be empty
  std::unique_ptr<Links> links_;
  std::unique_ptr<EngineContext> context_;
  std::unique_ptr<Early> early_;  // of strangers
  std::map<GroupId, Stranger> strangers_;
  std::map<GroupId, Error> ended_;
  ClosedGroups closed_;
  std::unordered_map<GroupId, std::unique_ptr<Group>> groups_;
  ElasticGroup* elastic_ = nullptr;
  std::unique_ptr<Timer> tick_timer_;
  std::uint64_t last_tick_ms_ = 0;
  bool closing_ = false;
};

}  // namespace pccl
