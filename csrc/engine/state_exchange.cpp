#include "engine/state_exchange.h"

#include <algorithm>
#include <vector>

#include "engine/kept.h"
#include "engine/placement.h"
#include "wire/codec.h"

namespace pccl {
namespace {

Error not_offered() {
  return {ErrorCode::closed, "this peer does not offer that state (any more)"};
}

/// The failure of one source, whichever code the source names: another source may deliver.
Error of_source(const std::string& name, const std::string& what) {
  return {ErrorCode::closed, "peer " + name + " " + what};
}

/// The longest time that an item of so many bytes may take.
std::uint64_t most_ms(std::uint64_t bytes) {
  return kPullGraceMs + bytes / kPullBytesPerSecondMin * 1000;
}

}  // namespace

StateExchange::~StateExchange() {
  withdraw();
  fail_all({ErrorCode::closed, "the group has been closed"});
}

void StateExchange::offer(Snapshot snapshot) {
  withdraw();
  snapshot_ = std::move(snapshot);
  for (const Buffer& item : snapshot_.items) {
    bytes_offered_ += item.bytes;
    cost_offered_ += kept_cost(item.bytes);
  }
  offer_token_ = context_.token(*this);
  offered_ = true;
}

void StateExchange::withdraw() {
  if (!offered_) return;
  offered_ = false;
  context_.retire(offer_token_);
  offer_token_ = 0;
  snapshot_ = {};
  bytes_offered_ = cost_offered_ = 0;
  served_to_.clear();
  sending_cost_.clear();
  // The links drop the items that they held: peers that wait for these ask another source.
  for (const auto& [index, sending] : std::exchange(sending_, {})) {
    const PullReply reply{group_, sending.request, not_offered(), 0};
    context_.links.send_control(sending.to, encode(PeerToPeer{reply}));
  }
}

void StateExchange::pulled_from(PeerId peer, const Pull& request) {
  PullReply reply{group_, request.request, {}, 0};
  if (!offered_ || snapshot_.digest != request.digest || request.item >= snapshot_.items.size()) {
    reply.error = not_offered();
    context_.links.send_control(peer, encode(PeerToPeer{reply}));
    return;
  }
  const Buffer& item = snapshot_.items[request.item];
  const std::uint64_t offset = std::min(request.offset, item.bytes);
  reply.bytes =
      request.bytes == 0 ? item.bytes - offset : std::min(request.bytes, item.bytes - offset);
  std::uint64_t& on_the_way = sending_cost_[peer];
  const std::uint64_t cost = kept_cost(reply.bytes);
  // Twice: for a peer that has given an item up and asks again.
  if (reply.bytes > 0 && on_the_way + cost > 2 * cost_offered_) {
    reply.bytes = 0;
    reply.error = {ErrorCode::closed, "the peer fetches more at once than this state has"};
  }
  context_.links.send_control(peer, encode(PeerToPeer{reply}));
  if (reply.bytes == 0) return;
  on_the_way += cost;
  const std::uint32_t index = ++last_sending_;
  const std::uint64_t segments = segments_of(reply.bytes);
  sending_[index] = {peer, request.request, segments, reply.bytes, cost};
  for (std::uint64_t segment = 0; segment < segments; ++segment) {
    SegmentHeader header;
    header.kind = SegmentKind::state;
    header.group = group_;
    header.op = OpKey{0, request.request};
    header.offset = segment * kSegmentBytesMax;
    header.bytes = bytes_of_segment(reply.bytes, segment);
    header.descriptor.count = reply.bytes;
    context_.links.send_segment(peer, header, item.data + offset + header.offset, offer_token_,
                                EngineContext::cookie(offer_token_, index));
  }
}

void StateExchange::segment_sent(MemoryToken, PeerId, std::uint32_t index) {
  const auto it = sending_.find(index);
  if (it == sending_.end()) return;
  Sending& sending = it->second;
  const std::uint64_t bytes = std::min<std::uint64_t>(sending.bytes, kSegmentBytesMax);
  sending.bytes -= bytes;
  const std::uint64_t cost = sending.segments == 1 ? sending.cost : bytes;
  sending.cost -= cost;
  sending_cost_[sending.to] -= cost;
  // Who fetches the same again and again does not fetch more.
  std::uint64_t& served = served_to_[sending.to];
  const std::uint64_t more = std::min(bytes, bytes_offered_ - served);
  served += more;
  bytes_served_ += more;
  if (--sending.segments == 0) sending_.erase(it);
}

void StateExchange::pull(PeerId source, const Digest& digest, std::uint32_t item, Buffer to,
                         std::shared_ptr<Ticket> ticket) {
  const std::uint64_t id = ++last_request_;
  Request& request = requests_[id];
  request.source = source;
  request.to = to;
  request.ticket = std::move(ticket);
  request.token = context_.token(*this);
  request.digest = digest;
  request.item = item;
  if (context_.links.is_up(source)) ask(id, request);
}

void StateExchange::cancel(const Ticket& ticket) {
  const auto it = std::find_if(requests_.begin(), requests_.end(), [&](const auto& entry) {
    return entry.second.ticket.get() == &ticket;
  });
  if (it != requests_.end()) finish(it->first, {ErrorCode::closed, "its caller has given it up"});
}

void StateExchange::ask(std::uint64_t id, Request& request) {
  request.asked = true;
  context_.links.send_control(
      request.source, encode(PeerToPeer{Pull{group_, id, request.digest, request.item, 0, 0}}));
}

void StateExchange::link_up(PeerId peer) {
  for (auto& [id, request] : requests_) {
    if (request.source == peer && !request.asked) ask(id, request);
  }
}

/// The first word about the size, from the reply or from a segment, whichever comes first.
bool StateExchange::size(Request& request, std::uint64_t bytes) {
  if (request.sized) return request.expected_bytes == bytes;
  if (request.to.data == nullptr) {
    if (bytes > kControlBytesMax) return false;
    std::vector<std::byte>& own = request.ticket->result<PullResult>().bytes;
    own.resize(bytes);
    request.to = {own.data(), bytes};
  }
  request.sized = true;
  request.expected_bytes = bytes;
  return request.to.bytes == bytes;
}

void StateExchange::replied(PeerId peer, const PullReply& reply) {
  const auto it = requests_.find(reply.request);
  if (it == requests_.end() || it->second.source != peer) return;
  if (reply.error.failed()) {
    finish(it->first,
           of_source(context_.name(peer), "answers " + std::string(error_name(reply.error.code)) +
                                              ": " + reply.error.text));
  } else if (!size(it->second, reply.bytes)) {
    finish(it->first,
           of_source(context_.name(peer), "has " + std::to_string(reply.bytes) +
                                              " bytes of an item that has another number here"));
  } else if (it->second.received_bytes == reply.bytes) {
    finish(it->first, {});
  }
}

Placement StateExchange::segment_header(PeerId from, const SegmentHeader& header) {
  const auto it = requests_.find(header.op.index);
  if (it == requests_.end() || it->second.source != from) return {};
  Request& request = it->second;
  request.idle_ms = 0;
  if (!size(request, header.descriptor.count) ||
      !segment_at(request.to.bytes, header.offset, header.bytes)) {
    return {};  // the reply says the same and fails it
  }
  return {request.to.data + header.offset, request.token, 0};
}

void StateExchange::segment_arrived(PeerId, const SegmentHeader& header, const Placement&) {
  const auto it = requests_.find(header.op.index);
  if (it == requests_.end()) return;
  it->second.received_bytes += header.bytes;
  bytes_received_ += header.bytes;
  it->second.idle_ms = 0;
  if (it->second.received_bytes == it->second.expected_bytes) finish(it->first, {});
}

void StateExchange::finish(std::uint64_t id, Error error) {
  auto node = requests_.extract(id);
  if (node.empty()) return;
  context_.retire(node.mapped().token);
  node.mapped().ticket->complete(std::move(error));
}

void StateExchange::link_gone(PeerId peer) {
  std::erase_if(sending_, [&](const auto& entry) { return entry.second.to == peer; });
  sending_cost_.erase(peer);
}

void StateExchange::link_down(PeerId peer, const std::string& reason) {
  link_gone(peer);
  std::vector<std::uint64_t> ids;
  for (const auto& [id, request] : requests_) {
    if (request.source == peer) ids.push_back(id);
  }
  for (const std::uint64_t id : ids) {
    finish(id, {ErrorCode::peer_lost, "the source of the shared state was lost: " + reason});
  }
}

void StateExchange::sources(const std::map<PeerId, Handle>& proposed) {
  std::vector<PeerId> gone;
  for (const auto& [id, request] : requests_) {
    if (!proposed.contains(request.source)) gone.push_back(request.source);
  }
  for (const PeerId peer : gone) link_down(peer, "the next epoch goes on without it");
}

void StateExchange::fail_all(const Error& error) {
  while (!requests_.empty()) finish(requests_.begin()->first, error);
}

void StateExchange::tick(std::uint64_t elapsed_ms) {
  std::map<std::uint64_t, std::string> late;
  for (auto& [id, request] : requests_) {
    request.idle_ms += elapsed_ms;
    request.waited_ms += elapsed_ms;
    if (request.idle_ms >= kPullIdleMs) {
      late[id] = "has sent nothing for " + std::to_string(kPullIdleMs / 1000) + " s";
    } else if (request.waited_ms >= most_ms(request.expected_bytes)) {
      late[id] = "has sent " + std::to_string(request.received_bytes) + " of " +
                 std::to_string(request.expected_bytes) + " bytes in " +
                 std::to_string(request.waited_ms / 1000) + " s";
    }
  }
  for (const auto& [id, what] : late) {
    finish(id, {ErrorCode::timed_out, "the source of the shared state " + what});
  }
}

}  // namespace pccl
