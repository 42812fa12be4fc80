// Shared state on its way between two members: the snapshot that this peer offers while it stands
// at a boundary, and the items that it pulls from others. Bytes only; what they mean is Python's
// (_state.py). Engine's thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "engine/boundary.h"
#include "engine/context.h"
#include "wire/messages.h"

namespace pccl {

class StateExchange : public SegmentOwner {
 public:
  StateExchange(EngineContext& context, GroupId group) : context_(context), group_(group) {}
  ~StateExchange() override;
  StateExchange(const StateExchange&) = delete;
  StateExchange& operator=(const StateExchange&) = delete;

  void offer(Snapshot snapshot);
  /// After this call the owner may change the memory that was offered.
  void withdraw();

  void pull(PeerId source, const Digest& digest, std::uint32_t item, Buffer to,
            std::shared_ptr<Ticket> ticket);
  void cancel(const Ticket& ticket);
  void pulled_from(PeerId peer, const Pull& request);
  void replied(PeerId peer, const PullReply& reply);
  /// The link is up: sends the requests that were made before.
  void link_up(PeerId peer);
  void link_down(PeerId peer, const std::string& reason);
  /// What was on its way to the peer is not sent any more.
  void link_gone(PeerId peer);
  /// The other members of the newest proposal: pulls from other peers fail.
  void sources(const std::map<PeerId, Handle>& proposed);
  void fail_all(const Error& error);
  void tick(std::uint64_t elapsed_ms);
  /// Bytes of all pulls.
  [[nodiscard]] std::uint64_t bytes_received() const { return bytes_received_; }
  /// Bytes of all offers that others have fetched: of each offer, each of them as many as it has.
  [[nodiscard]] std::uint64_t bytes_served() const { return bytes_served_; }
  /// Of the offer; 0: there is none.
  [[nodiscard]] std::uint64_t bytes_offered() const { return bytes_offered_; }

  [[nodiscard]] Placement segment_header(PeerId from, const SegmentHeader& header);
  void segment_sent(MemoryToken token, PeerId peer, std::uint32_t index) override;
  void segment_arrived(PeerId peer, const SegmentHeader& header, const Placement& at) override;

 private:
  struct Request {
    PeerId source;
    Digest digest{};
    std::uint32_t item = 0;
    bool asked = false;
    Buffer to;
    std::shared_ptr<Ticket> ticket;
    MemoryToken token = 0;
    std::uint64_t expected_bytes = 0;
    std::uint64_t received_bytes = 0;
    bool sized = false;
    std::uint64_t waited_ms = 0;
    std::uint64_t idle_ms = 0;  // since the last byte
  };
  /// An item on its way to another peer.
  struct Sending {
    PeerId to;
    std::uint64_t request = 0;
    std::uint64_t segments = 0;  // that the links still hold
    std::uint64_t bytes = 0;     // of these
    std::uint64_t cost = 0;      // kept_cost of the item, less what has been sent
  };
  [[nodiscard]] bool size(Request& request, std::uint64_t bytes);
  void ask(std::uint64_t id, Request& request);
  void finish(std::uint64_t id, Error error);

  EngineContext& context_;
  GroupId group_;
  Snapshot snapshot_;
  bool offered_ = false;
  MemoryToken offer_token_ = 0;
  std::uint32_t last_sending_ = 0;
  std::map<std::uint32_t, Sending> sending_;      // of the offer, by the index in cookies
  std::map<PeerId, std::uint64_t> sending_cost_;  // of these
  std::uint64_t bytes_offered_ = 0;
  std::uint64_t cost_offered_ = 0;             // kept_cost of all items
  std::map<PeerId, std::uint64_t> served_to_;  // of the offer
  std::uint64_t bytes_served_ = 0;
  std::uint64_t bytes_received_ = 0;
  std::uint64_t last_request_ = 0;
  std::map<std::uint64_t, Request> requests_;
};

}  // namespace pccl
