// A process group as the engine's thread sees it: operations in flight, what arrives for them, and
// the numbering that the caller sees. What a loss means differs: fixed_group.h and elastic_group.h.
// Engine's thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/context.h"
#include "engine/early.h"
#include "engine/flow.h"
#include "engine/operation.h"
#include "engine/point_to_point.h"
#include "wire/messages.h"

namespace pccl {

using Numbering = std::shared_ptr<const std::vector<PeerId>>;

class Group : public OperationPort, public SegmentOwner {
 public:
  Group(EngineContext& context, GroupId id, std::string name, bool elastic);
  ~Group() override;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  virtual void post(OpRequest request, std::shared_ptr<Ticket> ticket) = 0;
  virtual void link_up(PeerId peer) = 0;
  virtual void link_down(PeerId peer, const std::string& reason, Down how) = 0;
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
  /// An operation and the numbering in which its caller issued it.
  struct Pending {
    std::unique_ptr<Operation> op;
    Numbering numbering;
    std::vector<PeerId> contributors;  // of its last run
  };

  /// Ends every call of this group that waits.
  virtual void end_waits(const Error& error) = 0;
  virtual void op_complete(Pending& pending) = 0;
  /// `from` calls something else than we do; `text` names both sides.
  virtual void op_mismatch(OpKey op, PeerId from, const std::string& text) = 0;
  virtual void op_timed_out(Pending& pending) = 0;
  /// Members of the running epoch that are in this group's exchange.
  [[nodiscard]] virtual bool member(PeerId peer) const = 0;
  [[nodiscard]] virtual bool holding() const { return false; }
  /// Is it known that this member has not issued the operation yet?
  [[nodiscard]] virtual bool late(OpKey, PeerId) const { return false; }
  /// A segment that answers a Pull (state_exchange.h).
  [[nodiscard]] virtual Placement pull_header(PeerId, const SegmentHeader&) { return {}; }
  /// One past the newest operation that was issued.
  [[nodiscard]] virtual OpKey next_key() const = 0;

  Pending& add(OpKey key, OpRequest request, std::shared_ptr<Ticket> ticket, Numbering numbering);
  /// Runs it in `epoch_` as soon as memory and overlapping operations allow.
  void run(OpKey key);
  /// Takes it out of the links; it keeps its preimage.
  void stop(Pending& pending);
  void finish(OpKey key, Error error);
  void fail_pending(const Error& error);
  /// Asks a member whether it has issued the operation, and the same one.
  void ask_issued(const Pending& pending, PeerId peer);
  /// `relays`: who reaches whom over a third only; the ring goes round them.
  void set_epoch(EpochId epoch, std::vector<PeerId> members, const std::vector<Relay>& relays = {});
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
  EpochId epoch_;
  std::vector<PeerId> members_;  // of the epoch, in rank order, with self
  std::vector<PeerId> ring_;     // the same, in the order in which data go round
  std::map<PeerId, std::string> addresses_;
  std::uint64_t timeout_ms_ = 0;
  std::map<OpKey, Pending> ops_;
  Flow flow_;
  Early early_;
  PointToPoint point_to_point_;

 private:
  void start_now(Pending& pending);
  [[nodiscard]] std::vector<std::size_t> along_ring(const std::vector<PeerId>& numbering) const;
  void start_deferred();
  [[nodiscard]] bool must_wait(const Pending& pending) const;
  void progress(OpKey key);
  [[nodiscard]] bool fits(Pending& pending, PeerId from, const SegmentHeader& header);

  std::map<MemoryToken, OpKey> running_;
  std::uint64_t preimage_bytes_ = 0;  // of operations that run
  std::size_t deferred_ = 0;
  bool stopped_ = false;  // for good: memory of callers is theirs again
};

}  // namespace pccl
