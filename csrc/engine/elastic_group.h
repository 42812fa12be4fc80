// The elastic group of a process: its members change from epoch to epoch, as the master decides.
// The peer's core (membership/peer.h) takes all decisions of this side: ElasticGroup feeds events
// to the core and carries out the core's actions, in order, over links, operations and the
// connection to the master. Engine's thread only; other threads may read what
// `renumber_pending` returns.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/boundary_stay.h"
#include "engine/contributors.h"
#include "engine/door.h"
#include "engine/group.h"
#include "engine/idleness.h"
#include "engine/join_wait.h"
#include "engine/link_keeper.h"
#include "engine/link_meter.h"
#include "engine/master_client.h"
#include "engine/run.h"
#include "engine/run_end.h"
#include "engine/stall.h"
#include "engine/state_exchange.h"
#include "membership/peer.h"

namespace pccl {

/// Input: calls of the program, messages of the master, events of links, ticks. Output: outcomes of
/// tickets, messages to the master, hooks. When a member is lost, operations without an outcome
/// stop; the next epoch replays, commits or fails each of them, with the same outcome at all
/// survivors.
class ElasticGroup : public Group {
 public:
  /// `joined`: completed when the run is founded. `ended`: called once, with the reason, when this
  /// process is not a member of the run any more.
  ElasticGroup(EngineContext& context, const JoinOptions& options, std::shared_ptr<Ticket> joined,
               std::function<void(const GroupEvent&)> hooks,
               std::function<void(const Error&)> ended);
  ~ElasticGroup() override;

  void join();
  void link_up(PeerId peer) override;
  void link_down(PeerId peer, const std::string& reason, Down how) override;
  void link_gone(PeerId peer) override;
  void tick(std::uint64_t elapsed_ms) override;
  void close() override;
  void abort(const std::string& why) override;
  void fail(Error error) override;
  [[nodiscard]] GroupView view() const override;
  [[nodiscard]] bool needs(PeerId peer) const override;

  [[nodiscard]] Tickets users_of(const std::vector<Buffer>& memory) const override;
  void returned(const peer::Returned& over, std::shared_ptr<Ticket> ticket);
  void leave(bool at_once);
  /// The program ends with an error: the goodbye to the master has this text.
  void program_fails(const std::string& failure) { program_failure_ = failure; }
  /// The handles of these peers. A peer that is not a member of the present epoch is `peer_lost`.
  [[nodiscard]] Result<std::vector<Handle>> handles(const std::vector<PeerId>& peers) const;
  /// Is the link to this peer up only because the peer may be a member later?
  [[nodiscard]] bool only_tries(PeerId peer) const;
  /// Is this peer another rank of this process's replica?
  [[nodiscard]] bool sibling(PeerId peer) const;
  void boundary_begin(const BoundaryRequest& request, std::shared_ptr<BoundaryTalk> talk);
  void boundary_root(const StateRoot& root, Snapshot snapshot);
  [[nodiscard]] bool boundary_adopt(const StateRoot& root);
  void boundary_fetched(const StateRoot& root, Snapshot snapshot);
  void pull(PeerId source, const Digest& digest, std::uint32_t item, Buffer to,
            std::shared_ptr<Ticket> ticket);
  void cancel_pull(const Ticket& ticket);
  void store(StoreRequest request, std::shared_ptr<Ticket> ticket);
  /// Set while rank and size may change when a caller returns from its operation (peer::Returned).
  /// Other threads read it; it outlives the group.
  [[nodiscard]] std::shared_ptr<const std::atomic<bool>> renumber_pending() const {
    return renumber_pending_;
  }

 protected:
  using Group::on;
  void on(PeerId from, const TellIssued& m) override { stall_.told(from, m); }
  void on(PeerId from, const Pull& m) override { exchange_.pulled_from(from, m); }
  void on(PeerId from, const PullReply& m) override { exchange_.replied(from, m); }
  void end_waits(const Error& error) override;
  void op_complete(Pending& pending) override;
  void op_mismatch(OpKey op, PeerId from, const std::string& text) override;
  void op_timed_out(Pending& pending) override;
  void op_starved(Pending& pending, const Error& error) override;
  [[nodiscard]] bool stays_out(OpRequest& request, const std::shared_ptr<Ticket>& ticket) override;
  void issue(OpRequest request, std::shared_ptr<Ticket> ticket) override;
  void issue_message(OpRequest request, std::shared_ptr<Ticket> ticket) override;
  [[nodiscard]] EpochId accepted_epoch() const override;
  [[nodiscard]] bool accepted_member(PeerId peer) const override;
  [[nodiscard]] bool holding() const override;
  [[nodiscard]] std::string no_commit_text() const override;
  [[nodiscard]] bool late(OpKey op, PeerId peer) const override { return stall_.late(op, peer); }
  [[nodiscard]] bool past(OpKey op, PeerId peer) const override { return stall_.past(op, peer); }
  [[nodiscard]] OpKey next_key() const override { return peer::next_key(core_); }
  [[nodiscard]] Placement pull_header(PeerId from, const SegmentHeader& header) override {
    return exchange_.segment_header(from, header);
  }

 private:
  /// A mismatch in an operation that this rank had completed.
  struct Late {
    OpKey op;
    std::string text;
  };
  struct Return {
    peer::Returned over;
    std::shared_ptr<Ticket> ticket;
  };
  void feed(const peer::Event& event);
  void act(const peer::Action& action);
  void on(const peer::ToMaster& a);
  void on(const peer::StopData& a);
  void on(const peer::Connect& a);
  void on(const peer::TryLinks& a);
  void on(const peer::MeasureLink& a) { meter_.measure(a.peer, a.known); }
  void on(const peer::HashState& a);
  void on(const peer::Fetch& a);
  void on(const peer::Adopt& a);
  void on(const peer::Configure& a);
  void on(const peer::RunOp& a);
  void on(const peer::RestoreOp& a);
  void on(const peer::CommitOp& a);
  void on(const peer::FailOp& a);
  void on(const peer::EnterStep& a);
  void on(const peer::Renumber& a);
  void on(const peer::WasEvicted& a);
  void on(const peer::WasRefused& a);
  void on(const peer::HasLeft& a);
  void on(const peer::Greeted& a);
  void on(const peer::Say& a);

  void move_links(const LinkKeeper::Moves& moves);
  [[nodiscard]] Trips trips() const;
  void end_old_ways();
  void master_connected();
  void master_lost(const std::string& reason, bool news);
  void end(Error error);
  void release_links(bool in_order);
  [[nodiscard]] std::optional<Error> refuse_boundary(const BoundaryRequest& request) const;
  [[nodiscard]] BoundaryEvent tell_left();
  void enter_boundary();
  void wait_to_join(std::uint64_t elapsed_ms);
  void wait_at_boundary(std::uint64_t elapsed_ms);
  void boundary_timed_out();
  void hook(GroupEvent event);
  void come_in();
  void start_message(OpRequest request, std::shared_ptr<Ticket> ticket);
  [[nodiscard]] std::optional<Error> refuse_post(const OpRequest& request) const;
  [[nodiscard]] peer::LossClass loss_class(const OpRequest& request) const;
  void fail_late();
  void say_replayed(const Pending& pending);
  void settle_returns();
  void update_renumber();
  void watch_stall(std::uint64_t elapsed_ms);

  JoinOptions options_;
  JoinWait joining_;
  std::function<void(const GroupEvent&)> hooks_;
  std::function<void(const Error&)> ended_;
  peer::State core_;
  std::deque<peer::Event> events_;  // not given to the core yet
  bool feeding_ = false;
  MasterClient client_;
  StateExchange exchange_;
  LinkKeeper keeper_;
  LinkMeter meter_;
  bool admitted_ = false;
  RunEnd end_;
  bool said_left_ = false;  // the program has heard at a boundary that it has left
  // A mismatch in a completed operation, for which no call has failed yet.
  std::optional<Late> late_;
  std::optional<Welcome> welcome_;
  Stall stall_;
  Idleness idleness_;
  // In which the program hashed the state, or took a fetched one over.
  std::uint64_t state_ticks_ = 0;
  std::string program_failure_;
  BoundaryStay stay_;
  Contributors contributors_;
  Door door_;
  std::vector<Return> returns_;  // that wait for the outcomes of earlier calls
  std::shared_ptr<std::atomic<bool>> renumber_pending_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace pccl
