// send and recv in one epoch of a group: sending, placing, outcomes. matcher.h decides which
// receive takes which send. Small payloads travel at once (bounded for each peer); larger ones are
// announced and follow when the receive is posted. So many announcements may be without an answer
// (kAnnouncedSendsMax); further sends wait here, in order. Engine's thread only.
//
// In a fixed group a send completes when its bytes have left; in an elastic group when the receive
// has completed (`confirmed`). Names of sends hold peers and not ranks: a change of numbering in
// the middle of an epoch changes nothing here.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/context.h"
#include "engine/matcher.h"
#include "engine/placement.h"
#include "engine/preimage.h"
#include "engine/waiting_lines.h"
#include "wire/messages.h"

namespace pccl {

/// Implemented by the group, whose barriers wait for messages.
class MessageWatcher {
 public:
  virtual ~MessageWatcher() = default;
  /// A message has come, has left, or has its outcome.
  virtual void messages_moved() = 0;
};

class PointToPoint : public SegmentOwner {
 public:
  PointToPoint(EngineContext& context, MessageWatcher& watcher, GroupId group, EpochId epoch,
               bool confirmed);
  ~PointToPoint() override;
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  /// `request.peer` is a rank of `request.numbering`, or -1 (recv): any of them.
  void post(OpRequest request, std::shared_ptr<Ticket> ticket);

  [[nodiscard]] Placement segment_header(PeerId from, const SegmentHeader& header);
  void segment_sent(MemoryToken token, PeerId peer, std::uint32_t index) override;
  void segment_arrived(PeerId peer, const SegmentHeader& header, const Placement& at) override;
  /// A small send that arrived before this group was known here.
  void adopt(PeerId from, const SegmentHeader& header, PoolBuffer payload);
  void announced(PeerId from, const Announce& message);
  void accepted(PeerId from, const Accept& message);
  void withdrawn(PeerId from, const Withdraw& message);
  void inputs_came(const InputGate& gate);

  // Barriers (barrier.cpp): a barrier begins when those messages have arrived whose send and
  // receive were both called before the barrier. So it ends after these receives, at all ranks.
  /// Number of this rank's sends to each peer that has perhaps not received them all.
  [[nodiscard]] std::map<PeerId, std::uint64_t> unconfirmed_sends() const;
  /// Number of the sends to this peer that have been sent or announced: those before all others.
  [[nodiscard]] std::uint64_t sends_begun(PeerId peer) const;
  /// Do bytes of an accepted send that was called before `order` still have to leave?
  [[nodiscard]] bool leaves(std::uint64_t order) const;
  void flush_asked(PeerId from, const Flush& question);
  void flushed(PeerId from, const Flushed& answer);
  /// Does a rank at a barrier wait for an answer?
  [[nodiscard]] bool asked() const { return !questions_.empty(); }
  /// Answers the questions (Flush) that can be answered. `order_of` returns the order of a
  /// barrier's call here; 0: the barrier is over, or the call is no barrier; nothing: it has not
  /// been called yet.
  using OrderOf = std::function<std::optional<std::uint64_t>(OpKey)>;
  void answer_flushes(const OrderOf& order_of);

  /// The group is closed here. Its data that other members still keep stay counted.
  void close();
  /// Tells the receivers of announced sends that these will not come, and why.
  void withdraw_all(const Error& error);
  /// The peer receives nothing more, and begins no more sends; sends that it has begun may still
  /// arrive. Receives from any source fail if this was the last peer.
  void peer_left(PeerId peer, const Error& error, bool last);
  /// The sends that the peer had begun will not arrive any more.
  void peer_gone(PeerId peer, const Error& error);
  /// The link to this peer is gone: drops half-received messages.
  void link_gone(PeerId peer);
  void fail_all(const Error& error);
  void tick(std::uint64_t elapsed_ms);
  /// The tickets of all sends and receives without an outcome.
  [[nodiscard]] std::vector<std::shared_ptr<Ticket>> tickets() const;
  [[nodiscard]] bool idle() const { return sends_.empty() && receives_.empty(); }

 private:
  using ReceiveId = Matcher::ReceiveId;
  struct Common {
    OpRequest request;
    std::shared_ptr<Ticket> ticket;
    std::uint64_t waited_ms = 0;
    bool said_waiting = false;
  };
  struct SendState : Common {
    MemoryToken token = 0;
    std::uint64_t segments_left = 0;
    std::uint64_t segments_begun = 0;
    bool eager = false;
    bool announced = false;
    bool unanswered = false;  // announced, and counted in the window of its receiver
    bool has_left = false;
  };
  struct ReceiveState : Common {
    bool matched = false;
    SendName name;  // once matched
    MemoryToken token = 0;
    SegmentSet segments;
    std::unique_ptr<Preimage> preimage;
  };
  /// A send that no receive has taken yet.
  struct Arrival {
    std::uint64_t bytes = 0;
    bool eager = false;
    PoolBuffer payload;  // eager: once it is whole; empty where there is no memory for it
    Kept kept;
  };
  /// The payload of a small send on its way into pool memory, which a lane writes.
  struct Arriving {
    SendName name;
    PoolBuffer payload;
  };

  [[nodiscard]] bool begin_send(const SendName& name, SendState& send);
  void begin_sends(PeerId peer);
  void answered(const SendName& name, SendState& send);
  void stream(const SendName& name, SendState& send);
  [[nodiscard]] static std::uint64_t bytes_there(const SendState& send);
  [[nodiscard]] SegmentHeader header_of(const SendName& name, const SendState& send) const;
  void send_accept(const SendName& name, bool complete, Error error);
  void finish_send(const SendName& name, Error error);
  void withdraw(const SendName& name, const SendState& send, const Error& error);
  void window_back(const SendName& name);

  [[nodiscard]] bool comes(const SendName& name, std::uint64_t bytes, bool eager);
  [[nodiscard]] Placement eager_header(PeerId from, const SegmentHeader& header);
  [[nodiscard]] Placement message_header(PeerId from, const SegmentHeader& header);
  void settle(PeerId peer);
  void consume(const Matcher::Pair& pair);
  void begin_receive(ReceiveId id, ReceiveState& receive);
  void refuse(ReceiveId id, const Error& error);
  void finish_receive(ReceiveId id, Error error);
  [[nodiscard]] bool waits_for(PeerId from, std::uint64_t sends, std::uint64_t order) const;
  [[nodiscard]] std::uint64_t received(PeerId from) const;
  void moved() {
    if (watcher_ != nullptr) watcher_->messages_moved();
  }
  template <typename Which>
  void fail_receives(const Error& error, Which&& which);

  [[nodiscard]] static std::string describe(const OpRequest& request);
  [[nodiscard]] static Error about(const Common& which, const Error& error);
  [[nodiscard]] static std::string rank_text(const OpRequest& request, PeerId peer);

  EngineContext& context_;
  MessageWatcher* watcher_;  // null while this is taken down
  GroupId group_;
  EpochId epoch_;
  bool confirmed_;

  std::map<PeerId, std::uint64_t> next_index_;  // of sends to this peer
  std::map<SendName, SendState> sends_;
  std::unordered_map<MemoryToken, SendName> send_tokens_;
  /// Small sends that count in the window, by index: at most kEagerSendsMax to a peer. Each of them
  /// gives its place back once, though the peer may accept it after it was given up here.
  std::map<PeerId, std::vector<std::uint64_t>> eager_sends_;
  // Sends that have not begun, in their order, because the window of their receiver is full; some
  // may have been given up meanwhile. Never empty.
  std::map<PeerId, std::deque<SendName>> waiting_;

  Matcher matcher_;
  ReceiveId last_receive_ = 0;
  std::map<ReceiveId, ReceiveState> receives_;  // in the order in which they were posted
  std::unordered_map<MemoryToken, ReceiveId> receive_tokens_;
  std::map<SendName, ReceiveId> receiving_;  // announced sends that a receive has taken
  std::map<SendName, Arrival> arrivals_;
  std::map<PeerId, MemoryToken> eager_tokens_;
  std::uint64_t last_cookie_ = 0;
  std::unordered_map<std::uint64_t, Arriving> arriving_;  // by cookie
  // Sends that were withdrawn before they came, which the matcher remembers: by their numbers.
  std::map<PeerId, std::map<std::uint64_t, Kept>> given_up_;

  WaitingLines waiting_lines_;

  struct Question {
    std::uint64_t sends = 0;
    Kept kept;
  };
  std::map<std::pair<PeerId, OpKey>, Question> questions_;  // of ranks at a barrier
  // Number of sends that the peer has received, by its Flushed.
  std::map<PeerId, std::uint64_t> confirmed_sends_;
};

}  // namespace pccl
