// A process group as the engine's thread sees it: operations in flight, what arrives for them, and
// the numbering that the caller sees. What a loss means differs: fixed_group.h and elastic_group.h.
// Engine's thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/completed.h"
#include "engine/context.h"
#include "engine/epoch_run.h"
#include "engine/operation_table.h"
#include "wire/messages.h"

namespace pccl {

class Group : public OperationPort, public SegmentOwner, public MessageWatcher {
 public:
  Group(EngineContext& context, GroupId id, std::string name, bool elastic);
  ~Group() override;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Ranks and lists of the request are checked here; they may be of a numbering that is over.
  void post(OpRequest request, std::shared_ptr<Ticket> ticket);
  virtual void link_up(PeerId peer) = 0;
  virtual void link_down(PeerId peer, const std::string& reason, Down how) = 0;
  /// The link to this peer is gone, whether the group needs it or not: nothing half comes whole.
  void link_gone(PeerId peer);
  virtual void control(PeerId peer, const PeerToPeer& message);
  virtual void tick(std::uint64_t elapsed_ms);
  /// Leaves in good order; nothing of the group runs afterwards.
  virtual void close() = 0;
  virtual void abort(const std::string& why) = 0;
  /// Nothing of it goes on, because of something outside it; tells its other members.
  virtual void fail(Error error) = 0;
  [[nodiscard]] virtual GroupView view() const = 0;
  [[nodiscard]] virtual bool needs(PeerId peer) const = 0;

  [[nodiscard]] Placement segment_header(PeerId from, const SegmentHeader& header);
  void segment_sent(MemoryToken token, PeerId peer, std::uint32_t index) override;
  void segment_arrived(PeerId peer, const SegmentHeader& header, const Placement& at) override;
  void send_segment(Operation& op, std::uint32_t contributor, std::uint32_t channel,
                    std::uint64_t offset, const std::byte* data, std::uint32_t bytes,
                    std::uint32_t index) override;

  void messages_moved() override;
  /// The gate of an operation has opened further.
  void inputs_came(const InputGate& gate);
  /// A segment that arrived when nobody could use it; perhaps this group can now.
  void adopt(EarlySegment segment);
  /// A bug has stopped the engine: everything that waits ends, nothing is sent. Throws nothing.
  void stop_for_good(const Error& error);
  /// A line for the report of a bug.
  [[nodiscard]] std::string report() const;

  [[nodiscard]] GroupId id() const { return id_; }
  [[nodiscard]] std::vector<OpInFlight> in_flight() const;
  void set_timeout(std::uint64_t timeout_ms) { timeout_ms_ = timeout_ms; }

 protected:
  /// Ends every call of this group that waits.
  virtual void end_waits(const Error& error) = 0;
  virtual void op_complete(Pending& pending) = 0;
  /// `from` calls something else than we do, or have done; `text` names both sides.
  virtual void op_mismatch(OpKey op, PeerId from, const std::string& text) = 0;
  virtual void op_timed_out(Pending& pending) = 0;
  /// This member has no memory for it: it is stopped and restored here, and has to fail for all.
  virtual void op_starved(Pending& pending, const Error& error) = 0;
  /// Not a member yet, or none any more? Then the call waits, or fails, and nobody looks at its
  /// ranks, which may be provisional.
  [[nodiscard]] virtual bool stays_out(OpRequest&, const std::shared_ptr<Ticket>&) { return false; }
  /// A request whose ranks are checked, in the present numbering.
  virtual void issue(OpRequest request, std::shared_ptr<Ticket> ticket) = 0;
  /// The same of a send or a receive, whose ranks are those of its own numbering.
  virtual void issue_message(OpRequest request, std::shared_ptr<Ticket> ticket) = 0;
  /// The epoch that is accepted and not in force, if there is one: traffic of it may come early.
  [[nodiscard]] virtual EpochId accepted_epoch() const { return {}; }
  /// Is the peer among the members of the accepted epoch?
  [[nodiscard]] virtual bool accepted_member(PeerId) const { return false; }
  [[nodiscard]] virtual bool holding() const { return false; }
  /// Is it known that this member has not issued the operation yet?
  [[nodiscard]] virtual bool late(OpKey, PeerId) const { return false; }
  /// A segment that answers a Pull (state_exchange.h).
  [[nodiscard]] virtual Placement pull_header(PeerId, const SegmentHeader&) { return {}; }
  /// One past the newest operation that was issued.
  [[nodiscard]] virtual OpKey next_key() const = 0;

  Pending& add(OpKey key, OpRequest request, std::shared_ptr<Ticket> ticket, Numbering numbering);
  /// Posts what was called between two epochs in the one that has begun, with `start`.
  template <typename Start>
  void start_messages(Start&& start) {
    starting_messages_ = true;  // a barrier called after some of them waits for these
    for (auto& [request, ticket] : std::exchange(between_epochs_, {})) {
      start(std::move(request), std::move(ticket));
    }
    starting_messages_ = false;
    messages_moved();
  }
  /// Runs it in `epoch_` as soon as memory and the operations before it allow.
  void run(OpKey key);
  /// Takes it out of the links; it keeps its preimage.
  void stop(Pending& pending);
  void finish(OpKey key, Error error);
  void fail_pending(const Error& error);
  /// Asks a member whether it has issued the operation, and the same one.
  void ask_issued(const Pending& pending, PeerId peer);
  /// `relays`: who reaches whom over a third only; the ring goes round them.
  void set_epoch(EpochId epoch, std::vector<PeerId> members, const std::vector<Relay>& relays = {});
  /// What came early for operations that were not called in the steps before goes with them.
  void begin_step(std::uint64_t step) { run_->early.drop_before(OpKey{step, 0}); }
  /// Nothing of the running epoch moves any more.
  void stop_epoch(const Error& error);
  [[nodiscard]] bool member(PeerId peer) const;
  [[nodiscard]] const std::vector<PeerId>& members() const { return run_->members; }
  void publish() { context_.publish(id_, view()); }
  [[nodiscard]] std::string describe(const Pending& pending) const;
  [[nodiscard]] std::string describe_wait(const Pending& pending) const;
  [[nodiscard]] std::string numbered(OpKey key) const;
  [[nodiscard]] std::string describe_peer(PeerId peer, const std::vector<PeerId>& numbering) const;
  [[nodiscard]] std::string waiting_text(const Pending& pending) const;
  [[nodiscard]] static std::string describe(const OpDescriptor& d);

  EngineContext& context_;
  GroupId id_;
  std::string name_;
  bool elastic_;
  Numbering numbering_;            // as the caller sees it
  std::unique_ptr<EpochRun> run_;  // in force; before the first one an empty one, of epoch 0
  std::map<PeerId, std::string> addresses_;
  std::uint64_t timeout_ms_ = 0;
  OperationTable ops_;
  /// Sends and receives that were issued between two epochs: they belong to the next one.
  std::deque<std::pair<OpRequest, std::shared_ptr<Ticket>>> between_epochs_;

 private:
  [[nodiscard]] std::unique_ptr<EpochRun> make_run(EpochId epoch);
  /// Where traffic of this epoch from this peer belongs; null: it is dropped.
  [[nodiscard]] EpochRun* run_of(PeerId from, EpochId epoch);
  [[nodiscard]] Placement keep_early(EpochRun& run, PeerId from, const SegmentHeader& header);
  [[nodiscard]] bool has_ended(const EpochRun& run, OpKey op) const;
  void use_early(EpochRun& run, EarlySegment segment);
  [[nodiscard]] bool deliver(Pending& pending, EarlySegment segment);
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
  [[nodiscard]] bool fits(Pending& pending, PeerId from, const OpDescriptor& theirs);
  void ended_already(OpKey op, PeerId from, const OpDescriptor& theirs, bool sends);

  Completed completed_;
  std::unique_ptr<EpochRun> ahead_;  // of the accepted epoch: what its members have sent already
  bool starting_deferred_ = false;
  bool more_may_start_ = false;  // meanwhile something has ended
  std::uint64_t calls_ = 0;
  bool starting_messages_ = false;
  bool stopped_ = false;  // for good: memory of callers is theirs again
};

}  // namespace pccl
