// The base of both kinds of process groups. A group takes the program's calls, runs each collective
// as an operation over the links, places the segments that arrive for it, and completes the ticket
// of every call. The two kinds differ in what the loss of a member means: fixed_group.h and
// elastic_group.h. Engine's thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/trips.h"
#include "engine/completed.h"
#include "engine/context.h"
#include "engine/epoch_run.h"
#include "engine/group_kind.h"
#include "engine/operation_table.h"
#include "engine/waiting_lines.h"
#include "wire/messages.h"

namespace pccl {

/// Input: calls (`post`), events of links and frames (from EngineCore), ticks. Output: frames to
/// the links, outcomes to the tickets, views to other threads. The tensors of a collective that has
/// failed in an elastic group hold their former values; in a fixed group they are undefined.
class Group : public OperationPort, public SegmentOwner, public MessageWatcher {
 public:
  Group(EngineContext& context, GroupId id, std::string name, GroupKind kind);
  ~Group() override;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Takes a call. Checks its ranks and lists in the numbering in which the caller meant them; the
  /// group's numbering may have changed since.
  void post(OpRequest request, std::shared_ptr<Ticket> ticket);
  virtual void link_up(PeerId peer) = 0;
  virtual void link_down(PeerId peer, const std::string& reason, Down how) = 0;
  /// The link to this peer is gone, whether or not the group needs the link: drops the segments and
  /// messages that have arrived in part.
  virtual void link_gone(PeerId peer);
  /// A message for this group has come: `on` of its kind handles it.
  virtual void control(PeerId peer, const PeerToPeer& message);
  virtual void tick(std::uint64_t elapsed_ms);
  /// Leaves in good order. No operation of the group runs after this call.
  virtual void close() = 0;
  virtual void abort(const std::string& why) = 0;
  /// Ends the group for a reason outside the group, and tells its other members.
  virtual void fail(Error error) = 0;
  [[nodiscard]] virtual GroupView view() const = 0;
  [[nodiscard]] virtual bool needs(PeerId peer) const = 0;

  [[nodiscard]] Placement segment_header(PeerId from, const SegmentHeader& header);
  void segment_sent(MemoryToken token, PeerId peer, std::uint32_t index) override;
  void segment_part(PeerId peer, const SegmentHeader& header, const Placement& at,
                    std::uint32_t offset, std::span<const std::byte> bytes) override;
  void segment_arrived(PeerId peer, const SegmentHeader& header, const Placement& at) override;
  void segment_lost(PeerId peer, const Placement& at) override;
  [[nodiscard]] std::optional<OwnArea::Part> take_area(std::uint32_t slots) override {
    OwnArea* const area = context_.links.area();
    return area == nullptr ? std::nullopt : area->take(slots);
  }
  [[nodiscard]] std::size_t threads() const override { return context_.network.threads(); }
  void each(std::size_t count, const std::function<void(std::size_t)>& work) override {
    context_.network.each(count, work);
  }
  void send_segment(Operation& op, std::uint32_t contributor, std::uint32_t channel,
                    std::uint64_t offset, const std::byte* data, std::uint32_t bytes,
                    std::uint32_t index) override;

  void messages_moved() override;
  /// The gate of an operation has opened further.
  void inputs_came(const InputGate& gate);
  /// Takes a segment that arrived before this group was made, or before its operation ran.
  void adopt(EarlySegment segment);
  /// A bug has stopped the engine: completes every ticket of the group, sends nothing. Throws
  /// nothing.
  void stop_for_good(const Error& error);
  /// The group and this member of it, as lines of the log name them.
  [[nodiscard]] std::string describe_member(PeerId peer) const;
  /// The group's line in the log after a bug has stopped the engine.
  [[nodiscard]] std::string report() const;

  [[nodiscard]] GroupId id() const { return id_; }
  [[nodiscard]] std::vector<OpInFlight> in_flight() const;
  /// The tickets of the collectives in flight that read or write this memory.
  [[nodiscard]] virtual Tickets users_of(const std::vector<Buffer>& memory) const;
  void set_timeout(std::uint64_t timeout_ms) { timeout_ms_ = timeout_ms; }

 protected:
  // Messages of a peer. One that belongs to the other kind of group is dropped.
  virtual void on(PeerId /*from*/, const Connected&) {}
  virtual void on(PeerId /*from*/, const Farewell&) {}
  virtual void on(PeerId /*from*/, const GroupFailed&) {}
  virtual void on(PeerId /*from*/, const OpFailed&) {}
  virtual void on(PeerId /*from*/, const TellIssued&) {}
  virtual void on(PeerId /*from*/, const Pull&) {}
  virtual void on(PeerId /*from*/, const PullReply&) {}
  void on(PeerId from, const Grant& m);
  void on(PeerId from, const Want& m);
  void on(PeerId from, const AskIssued& m);
  void on(PeerId from, const Announce& m);
  void on(PeerId from, const Accept& m);
  void on(PeerId from, const Withdraw& m);
  void on(PeerId from, const Flush& m);
  void on(PeerId from, const Flushed& m);

  /// Completes the tickets of all calls that wait in this group.
  virtual void end_waits(const Error& error) = 0;
  virtual void op_complete(Pending& pending) = 0;
  /// Under the key `op` the member `from` has called another operation than this rank; `text` names
  /// both. This rank's operation is in flight or has succeeded.
  virtual void op_mismatch(OpKey op, PeerId from, const std::string& text) = 0;
  virtual void op_timed_out(Pending& pending) = 0;
  /// This rank has no memory for the operation, has stopped it and restored its tensors: the
  /// operation has to fail at all members.
  virtual void op_starved(Pending& pending, const Error& error) = 0;
  /// True: this process is not a member yet, or not any more. The call then waits for admission, or
  /// its ticket has an error. The ranks of such a call are not checked: they may be provisional.
  [[nodiscard]] virtual bool stays_out(OpRequest&, const std::shared_ptr<Ticket>&) { return false; }
  /// Issues a collective, whose ranks are checked and refer to the present numbering.
  virtual void issue(OpRequest request, std::shared_ptr<Ticket> ticket) = 0;
  /// Issues a send or a receive, whose ranks are checked and refer to the request's own numbering.
  virtual void issue_message(OpRequest request, std::shared_ptr<Ticket> ticket) = 0;
  /// The epoch that this peer has accepted and that has not started here; EpochId{}: none. Members
  /// at which that epoch has started may send in it already.
  [[nodiscard]] virtual EpochId accepted_epoch() const { return {}; }
  /// Is the peer among the members of the accepted epoch?
  [[nodiscard]] virtual bool accepted_member(PeerId) const { return false; }
  /// Do the time-outs of operations stand still?
  [[nodiscard]] virtual bool holding() const { return false; }
  /// Why an operation that is complete here is not committed; of an elastic group.
  [[nodiscard]] virtual std::string no_commit_text() const { return ""; }
  /// Has this member said that it has not issued the operation yet?
  [[nodiscard]] virtual bool late(OpKey, PeerId) const { return false; }
  /// Has it gone on to a later step?
  [[nodiscard]] virtual bool past(OpKey, PeerId) const { return false; }
  /// The place of a segment that answers a Pull (state_exchange.h).
  [[nodiscard]] virtual Placement pull_header(PeerId, const SegmentHeader&) { return {}; }
  /// The key that the next operation gets.
  [[nodiscard]] virtual OpKey next_key() const = 0;

  Pending& add(OpKey key, OpRequest request, std::shared_ptr<Ticket> ticket, Numbering numbering);
  /// Begins, by `start`, the sends and receives that were called between two epochs, in the epoch
  /// that has begun.
  template <typename Start>
  void start_messages(Start&& start) {
    starting_messages_ = true;  // barriers look at messages when all of these have begun
    for (auto& [request, ticket] : std::exchange(between_epochs_, {})) {
      start(std::move(request), std::move(ticket));
    }
    starting_messages_ = false;
    messages_moved();
  }
  /// Runs the operation in the running epoch, as soon as the memory and the earlier operations
  /// allow.
  void run(OpKey key);
  /// Stops the operation: its segments leave the links, its preimage stays.
  void stop(Pending& pending);
  /// Completes the ticket of the operation and forgets the operation. `error` of code none:
  /// success.
  void finish(OpKey key, Error error);
  /// Restores and finishes all operations, and ends all sends and receives, with `error`.
  void fail_pending(const Error& error);
  /// Asks a member whether that member has issued the operation, and with the same descriptor.
  void ask_issued(const Pending& pending, PeerId peer);
  /// Begins an epoch. `relays`: pairs of members that reach each other over a third member only;
  /// the ring makes no neighbours of such a pair if another order of the ring is possible. `ring`:
  /// the members in the order in which data go round; empty: rank order. `lines`: the same ones at
  /// all members.
  void set_epoch(EpochId epoch, std::vector<PeerId> members, const std::vector<Relay>& relays = {},
                 const std::vector<PeerId>& ring = {}, const Lines& lines = {});
  /// Drops the segments that came early for operations of earlier steps, which were not called
  /// here.
  void begin_step(std::uint64_t step) { run_->early.drop_before(OpKey{step, 0}); }
  /// Ends the running epoch: operations stop, sends and receives fail with `error`.
  void stop_epoch(const Error& error);
  [[nodiscard]] bool is_elastic() const { return kind_ == GroupKind::elastic; }
  /// A bug has stopped the engine.
  [[nodiscard]] bool stopped() const { return stopped_; }
  [[nodiscard]] bool member(PeerId peer) const;
  [[nodiscard]] const std::vector<PeerId>& members() const { return run_->members; }
  /// Round trips of the links to the others of `ring`.
  [[nodiscard]] Trips trips_along(const std::vector<PeerId>& ring) const;
  void publish() { context_.host.publish(id_, view()); }
  [[nodiscard]] std::string describe_op(const Pending& pending) const;
  [[nodiscard]] std::string describe_wait(const Pending& pending) const;
  [[nodiscard]] std::string numbered(OpKey key) const;
  [[nodiscard]] std::string describe_peer(PeerId peer, const std::vector<PeerId>& numbering) const;
  [[nodiscard]] std::string waiting_text(const Pending& pending) const;
  /// What is known of the completed operations, when the group closes.
  [[nodiscard]] Completed take_completed() { return std::move(completed_); }

  EngineContext& context_;
  GroupId id_;
  std::string name_;
  const GroupKind kind_;
  Numbering numbering_;            // as the caller sees it
  std::unique_ptr<EpochRun> run_;  // of the running epoch; before the first: of epoch 0, empty
  std::map<PeerId, std::string> addresses_;
  std::uint64_t timeout_ms_ = 0;
  OperationTable ops_;
  /// Sends and receives that were called between two epochs: they begin with the next epoch.
  std::deque<std::pair<OpRequest, std::shared_ptr<Ticket>>> between_epochs_;

 private:
  [[nodiscard]] std::unique_ptr<EpochRun> make_run(EpochId epoch);
  [[nodiscard]] Lines lines_among(const std::vector<PeerId>& contributors) const;
  /// The EpochRun that takes frames of this epoch from this peer; null: such frames are dropped.
  [[nodiscard]] EpochRun* run_of(PeerId from, EpochId epoch);
  [[nodiscard]] Placement keep_early(EpochRun& run, PeerId from, const SegmentHeader& header);
  [[nodiscard]] bool has_ended(const EpochRun& run, OpKey op) const;
  void use_early(EpochRun& run, EarlySegment segment);
  [[nodiscard]] bool deliver(Pending& pending, EarlySegment segment);
  [[nodiscard]] static std::uint32_t contributor(const Pending& pending, PeerId peer);
  void refused(OpKey op, PeerId from, const Error& error);
  void starve(OpKey op);
  template <typename Body>
  bool with_memory(OpKey op, Body&& body);
  void start_now(Pending& pending);
  void start_deferred();
  [[nodiscard]] bool must_wait(const Pending& pending) const;
  [[nodiscard]] std::map<PeerId, std::uint64_t> sends_so_far() const;
  void ask_for_messages(Pending& barrier);
  void answer_flushes();
  void flushed(EpochRun& run, PeerId from, const Flushed& answer);
  void progress(OpKey key);
  void ask_the_others();
  void say_what_waits(std::uint64_t elapsed_ms);
  void end_what_is_late();
  void note_traffic(Pending& pending) const;
  [[nodiscard]] std::string held_text(const Pending& pending) const;
  [[nodiscard]] bool fits(Pending& pending, PeerId from, const OpDescriptor& theirs);
  void ended_already(OpKey op, PeerId from, const OpDescriptor& theirs, bool sends);
  [[nodiscard]] TellIssued tell_issued(OpKey op, const Pending* pending) const;

  WaitingLines waiting_lines_;
  Completed completed_;
  std::unique_ptr<EpochRun> ahead_;  // of the accepted epoch, for frames that come early
  bool starting_deferred_ = false;
  bool more_may_start_ = false;  // an operation has ended while start_deferred ran
  std::uint64_t calls_ = 0;
  bool starting_messages_ = false;
  bool stopped_ = false;  // by stop_for_good: tensors belong to the program again
};

}  // namespace pccl
