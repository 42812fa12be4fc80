// What lies between links over TCP (links.cpp) and the relay (relay.cpp): links of two peers' own,
// which also carry the frames of a relay without looking into them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "transport/transport.h"

namespace pccl {

class DirectEvents : public LinkEvents {
 public:
  /// The payload of a relay frame (relay_message.h), in order with control payloads.
  virtual void relay_arrived(PeerId peer, std::span<const std::byte> payload) = 0;
  /// In place of segment_sent, for a segment with a route to `far`.
  virtual void routed_sent(PeerId far, MemoryToken token, std::uint64_t cookie) = 0;
};

class DirectLinks {
 public:
  virtual ~DirectLinks() = default;
  [[nodiscard]] virtual std::uint16_t port() const = 0;
  [[nodiscard]] virtual PeerId self() const = 0;
  [[nodiscard]] virtual const LinkKey& key() const = 0;
  virtual void open(const Handle& peer, std::uint64_t deadline_ms, bool refusal_tells) = 0;
  virtual void close(PeerId peer) = 0;
  virtual void drop(PeerId peer) = 0;
  virtual void give_up(PeerId peer, const std::string& reason) = 0;
  [[nodiscard]] virtual bool is_up(PeerId peer) const = 0;
  virtual void send_control(PeerId peer, std::vector<std::byte> payload) = 0;
  virtual void send_relay(PeerId peer, std::vector<std::byte> payload) = 0;
  virtual void send_segment(PeerId peer, const SegmentHeader& header, const std::byte* payload,
                            MemoryToken token, std::uint64_t cookie) = 0;
  virtual void cancel(MemoryToken token) = 0;
  [[nodiscard]] virtual std::uint64_t bytes_sent() const = 0;
  [[nodiscard]] virtual std::uint64_t bytes_received() const = 0;
  [[nodiscard]] virtual std::uint64_t segment_bytes_received() const = 0;
  [[nodiscard]] virtual std::size_t queued_bytes(PeerId peer) const = 0;
  virtual void shutdown(std::uint64_t deadline_ms, std::function<void()> done) = 0;
};

[[nodiscard]] Result<std::unique_ptr<DirectLinks>> make_direct_links(Loop& loop,
                                                                     DirectEvents& events,
                                                                     const LinkOptions& options);

}  // namespace pccl
