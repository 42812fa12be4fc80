// send and recv of one group: matching by (sender, tag) in the order of the sends, or from any
// sender in the order of arrival. Small payloads travel at once (bounded per peer), larger ones are
// announced and follow when the receive is posted. Engine's thread only.
//
// In a fixed group a send completes when its bytes have left, in an elastic one when the receive
// has.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/context.h"
#include "engine/preimage.h"
#include "wire/messages.h"

namespace pccl {

class PointToPoint : public SegmentOwner {
 public:
  PointToPoint(EngineContext& context, GroupId group, bool elastic);
  ~PointToPoint() override;
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  /// The numbering of the group: rank -> peer. Counters start anew: nothing is pending at that
  /// moment.
  void configure(EpochId epoch, std::vector<PeerId> numbering);
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

  /// Tells the receivers of announced sends that they do not come, and why.
  void withdraw_all(const Error& error);
  /// The peer receives nothing more, and sends no more than what it has begun, which may be under
  /// way. Receives from anybody fail if it was the last one.
  void peer_left(PeerId peer, const Error& error, bool last);
  /// Nothing of what it had begun to send comes any more.
  void peer_gone(PeerId peer, const Error& error);
  void fail_all(const Error& error);
  void tick(std::uint64_t elapsed_ms, bool holding);
  /// Of everything that has no outcome.
  [[nodiscard]] std::vector<std::shared_ptr<Ticket>> tickets() const;
  [[nodiscard]] bool idle() const { return sends_.empty() && receives_.empty(); }

 private:
  struct Name {   // one send, seen from either side
    PeerId peer;  // the other one
    std::uint64_t tag = 0;
    std::uint64_t index = 0;
    auto operator<=>(const Name&) const = default;
  };
  struct Common {
    OpRequest request;
    std::shared_ptr<Ticket> ticket;
    std::uint64_t waited_ms = 0;
    bool said_waiting = false;
  };
  struct SendState : Common {
    MemoryToken token = 0;
    std::uint32_t segments_left = 0;
    std::uint32_t segments_begun = 0;
    bool eager = false;
    bool has_left = false;
  };
  struct RecvState : Common {
    std::uint64_t order = 0;
    bool matched = false;
    Name name;  // once matched
    MemoryToken token = 0;
    std::uint32_t segments_left = 0;
    std::unique_ptr<Preimage> preimage;
  };
  struct Arrival {  // a send that has not been received yet
    std::uint64_t order = 0;
    std::uint64_t bytes = 0;
    bool eager = false;
    bool here = false;  // eager: its payload is complete
    PoolBuffer payload;
  };

  void begin_send(const Name& name, SendState& send);
  void stream(const Name& name, SendState& send);
  [[nodiscard]] static std::uint64_t bytes_there(const SendState& send);
  void match_receive(RecvState& receive);
  void match_arrival(const Name& name);
  void consume(RecvState& receive, const Name& name, Arrival arrival);
  [[nodiscard]] static std::string describe(const OpRequest& request);
  [[nodiscard]] static Error about(const Common& which, const Error& error);
  void finish_receive(RecvState& receive, Error error);
  void finish_send(const Name& name, Error error);
  void withdraw(const Name& name, const SendState& send, const Error& error);
  template <typename Which>
  void fail_receives(const Error& error, Which&& which);
  void send_accept(const Name& name, bool complete, Error error);
  [[nodiscard]] SegmentHeader header_of(const Name& name, std::uint64_t total) const;
  [[nodiscard]] std::int32_t rank_of(PeerId peer) const;
  [[nodiscard]] bool wants(const RecvState& receive, const Name& name) const;

  EngineContext& context_;
  GroupId group_;
  bool elastic_;
  EpochId epoch_;
  std::vector<PeerId> numbering_;
  MemoryToken eager_token_ = 0;
  std::uint64_t order_ = 0;
  std::map<std::pair<PeerId, std::uint64_t>, std::uint64_t> next_index_;  // (to, tag)
  std::map<Name, SendState> sends_;
  std::map<MemoryToken, Name> send_tokens_;
  std::list<RecvState> receives_;
  std::map<MemoryToken, std::list<RecvState>::iterator> receive_tokens_;
  std::map<Name, Arrival> arrivals_;
  std::unordered_map<std::uint64_t, Name> eager_arriving_;  // by cookie
  std::map<PeerId, std::uint64_t> eager_sends_;             // ours, not received there yet
};

}  // namespace pccl
