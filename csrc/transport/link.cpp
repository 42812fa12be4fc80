#include "transport/link.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/limits.h"

namespace pccl {

Link::Link(Loop& loop, LinkOwner& owner, Handle to, std::uint64_t number)
    : handle(std::move(to)), serial(number), loop_(loop), owner_(owner) {}

void Link::start() {
  for (const auto& lane : lanes_) lane->start();
}

void Link::send_message(FrameType type, std::vector<std::byte> payload) {
  PCCL_ASSERT(!payload.empty(), "a message of no bytes");
  PCCL_ASSERT(payload.size() <= kControlBytesMax + kRelayHeadBytes, payload.size());
  Outgoing out;
  out.frame.type = type;
  out.frame.payload_bytes = static_cast<std::uint32_t>(payload.size());
  out.owned = std::move(payload);
  out.payload = out.owned.data();
  queued_bytes_ += out.payload_bytes();
  lanes_.front()->send(std::move(out));
}

void Link::send_segment(const SegmentHeader& header, const std::byte* payload, MemoryToken token,
                        std::uint64_t cookie) {
  PCCL_ASSERT(header.bytes <= kSegmentBytesMax, header.bytes);
  Outgoing out;
  out.frame.type = header.route.relayed() ? FrameType::routed : FrameType::segment;
  out.frame.payload_bytes = header.bytes;
  out.frame.segment = header;
  out.payload = payload;
  out.token = token;
  out.cookie = cookie;
  out.tells = true;
  queued_bytes_ += out.payload_bytes();
  if (header.bytes <= kSmallSegmentBytesMax || lanes_.size() == 1) {
    return lanes_.front()->send(std::move(out));
  }
  bulk_.push_back(std::move(out));
  for (std::size_t i = 1; i < lanes_.size() && !bulk_.empty(); ++i) {
    if (lanes_[i]->idle()) lanes_[i]->flush();
  }
}

void Link::cancel(MemoryToken token) {
  std::erase_if(bulk_, [&](const Outgoing& frame) {
    const bool hit = frame.token == token;
    if (hit) queued_bytes_ -= frame.payload_bytes();
    return hit;
  });
  for (const auto& lane : lanes_) queued_bytes_ -= lane->cancel(token);
}

void Link::close() {
  state = State::closing;
  for (const auto& lane : lanes_) lane->close();
}

void Link::end() {
  dial.reset();
  deadline.reset();
  retry.reset();
  for (const auto& lane : lanes_) lane->end();
  bulk_.clear();
  queued_bytes_ = 0;
}

void Link::lane_message(FrameType type, std::span<const std::byte> payload) {
  if (type == FrameType::relay) return owner_.link_events().relay_arrived(peer(), payload);
  owner_.link_events().control_arrived(peer(), payload);
}

Placement Link::lane_segment_header(const SegmentHeader& header) {
  return owner_.link_events().segment_header(peer(), header);
}

void Link::lane_segment(const SegmentHeader& header, const Placement& at) {
  owner_.link_events().segment_arrived(peer(), header, at);
}

void Link::lane_received(std::size_t payload_bytes, FrameType of) {
  owner_.link_received(payload_bytes, of);
}

void Link::lane_sent(const Outgoing& frame) {
  queued_bytes_ -= frame.payload_bytes();
  owner_.link_sent(*this, frame);
}

std::optional<Outgoing> Link::lane_next(const Lane& lane) {
  if (bulk_.empty() || &lane == lanes_.front().get()) return std::nullopt;
  std::optional<Outgoing> next = std::move(bulk_.front());
  bulk_.pop_front();
  return next;
}

void Link::lane_over(Lane&, const std::string& reason, bool broken) {
  if (state == State::closing) return;
  if (!broken && ++goodbyes_ < lanes_.size()) return;  // the other lanes may hold data still
  owner_.link_lost(*this, reason);
}

void Link::lane_closed(Lane&) {
  const bool all =
      std::none_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->open(); });
  if (all) owner_.link_closed(*this);
}

}  // namespace pccl
