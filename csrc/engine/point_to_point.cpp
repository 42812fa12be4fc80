#include "engine/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/log.h"
#include "wire/codec.h"

namespace pccl {
namespace {

constexpr std::uint64_t kEagerSendsMax = 256;  // per peer, not received there yet: 16 MiB

std::uint32_t segments_of(std::uint64_t bytes) {
  return static_cast<std::uint32_t>(
      std::max<std::uint64_t>(1, (bytes + kSegmentBytesMax - 1) / kSegmentBytesMax));
}

}  // namespace

PointToPoint::PointToPoint(EngineContext& context, GroupId group, bool elastic)
    : context_(context), group_(group), elastic_(elastic), eager_token_(context.token(*this)) {}

PointToPoint::~PointToPoint() {
  fail_all({ErrorCode::closed, "the group has been closed"});
  context_.retire(eager_token_);
}

void PointToPoint::configure(EpochId epoch, std::vector<PeerId> numbering) {
  epoch_ = epoch;
  numbering_ = std::move(numbering);
  next_index_.clear();
  if (elastic_) {
    std::erase_if(arrivals_,
                  [](const auto& entry) { return !entry.second.eager || entry.second.here; });
    eager_sends_.clear();
  }
}

std::int32_t PointToPoint::rank_of(PeerId peer) const {
  const auto at = std::find(numbering_.begin(), numbering_.end(), peer);
  return at == numbering_.end() ? -1 : static_cast<std::int32_t>(at - numbering_.begin());
}

SegmentHeader PointToPoint::header_of(const Name& name, std::uint64_t total) const {
  SegmentHeader header;
  header.group = group_;
  header.epoch = epoch_;
  header.op = OpKey{name.tag, name.index};
  header.descriptor.count = total;
  return header;
}

void PointToPoint::send_accept(const Name& name, bool complete, Error error) {
  context_.links.send_control(
      name.peer,
      encode(PeerToPeer{Accept{group_, epoch_, name.tag, name.index, complete, std::move(error)}}));
}

// ------------------------------------------------------------------------------------------- sends

void PointToPoint::post(OpRequest request, std::shared_ptr<Ticket> ticket) {
  if (request.descriptor.kind == OpKind::send) {
    const PeerId to = numbering_.at(static_cast<std::size_t>(request.peer));
    const Name name{to, request.tag, next_index_[{to, request.tag}]++};
    SendState& send = sends_[name];
    send.request = std::move(request);
    send.ticket = std::move(ticket);
    begin_send(name, send);
  } else {
    RecvState& receive = receives_.emplace_back();
    receive.request = std::move(request);
    receive.ticket = std::move(ticket);
    receive.order = ++order_;
    match_receive(receive);
  }
}

void PointToPoint::begin_send(const Name& name, SendState& send) {
  const std::uint64_t bytes = send.request.inputs.at(0).bytes;
  std::uint64_t& outstanding = eager_sends_[name.peer];
  const bool all_there = bytes_there(send) >= bytes;
  if (bytes <= kSmallSegmentBytesMax && outstanding < kEagerSendsMax && all_there) {
    ++outstanding;
    send.eager = true;
    stream(name, send);
  } else {
    context_.links.send_control(
        name.peer, encode(PeerToPeer{Announce{group_, epoch_, name.tag, name.index, bytes}}));
  }
}

/// Begins with the first segments and goes on with the others as they come.
void PointToPoint::stream(const Name& name, SendState& send) {
  const Buffer& from = send.request.inputs.at(0);
  if (send.token == 0) {
    send.token = context_.token(*this);
    send_tokens_[send.token] = name;
    send.segments_left = segments_of(from.bytes);
  }
  const std::uint64_t there = bytes_there(send);
  for (std::uint32_t& i = send.segments_begun; i < segments_of(from.bytes); ++i) {
    SegmentHeader header = header_of(name, from.bytes);
    header.offset = static_cast<std::uint64_t>(i) * kSegmentBytesMax;
    header.bytes = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(kSegmentBytesMax, from.bytes - header.offset));
    if (header.offset + header.bytes > there) return;
    header.kind = send.eager ? SegmentKind::eager : SegmentKind::message;
    context_.links.send_segment(name.peer, header, from.data + header.offset, send.token,
                                EngineContext::cookie(send.token, i));
  }
}

std::uint64_t PointToPoint::bytes_there(const SendState& send) {
  return send.request.gate ? send.request.gate->bytes.load(std::memory_order_acquire)
                           : send.request.inputs.at(0).bytes;
}

void PointToPoint::inputs_came(const InputGate& gate) {
  for (auto& [name, send] : sends_) {
    if (send.request.gate.get() != &gate) continue;
    if (send.token != 0) stream(name, send);  // else its receive has not been posted yet
    return;
  }
}

void PointToPoint::segment_sent(MemoryToken token, PeerId, std::uint32_t) {
  const auto it = send_tokens_.find(token);
  if (it == send_tokens_.end()) return;
  const Name name = it->second;
  SendState& send = sends_.at(name);
  if (--send.segments_left > 0) return;
  send.has_left = true;
  // The small ones stay on the books until the receiver has them: their number is bounded.
  if (!elastic_) finish_send(name, {});
}

void PointToPoint::accepted(PeerId from, const Accept& message) {
  const Name name{from, message.tag, message.index};
  if (message.epoch != epoch_) return;
  const auto it = sends_.find(name);
  // In a fixed group only small sends are confirmed, and they are off the list by then.
  const bool eager = it == sends_.end() ? !elastic_ : it->second.eager;
  if (message.complete && eager && eager_sends_[from] > 0) --eager_sends_[from];
  if (message.complete && !message.error.failed()) {
    if (elastic_) finish_send(name, {});
    return;
  }
  if (it == sends_.end()) return;
  if (message.error.failed()) {
    finish_send(name, message.error);
  } else if (it->second.token == 0) {
    stream(name, it->second);
  }
}

void PointToPoint::finish_send(const Name& name, Error error) {
  auto node = sends_.extract(name);
  if (node.empty()) return;
  SendState& send = node.mapped();
  if (send.token != 0) {
    send_tokens_.erase(send.token);
    context_.retire(send.token);
  }
  send.ticket->complete(std::move(error));
}

// ---------------------------------------------------------------------------------------- receives

bool PointToPoint::wants(const RecvState& receive, const Name& name) const {
  if (receive.matched || receive.request.tag != name.tag) return false;
  const std::int32_t from = receive.request.peer;
  return from < 0 || numbering_.at(static_cast<std::size_t>(from)) == name.peer;
}

/// The send that a new receive takes: of those that it may take the one that arrived first; of one
/// sender that is the one with the lowest number, since they arrive in order.
void PointToPoint::match_receive(RecvState& receive) {
  auto best = arrivals_.end();
  for (auto it = arrivals_.begin(); it != arrivals_.end(); ++it) {
    const bool ready = !it->second.eager || it->second.here;
    if (ready && wants(receive, it->first) &&
        (best == arrivals_.end() || it->second.order < best->second.order)) {
      best = it;
    }
  }
  if (best == arrivals_.end()) return;
  auto node = arrivals_.extract(best);
  consume(receive, node.key(), std::move(node.mapped()));
}

void PointToPoint::match_arrival(const Name& name) {
  const auto receive = std::find_if(receives_.begin(), receives_.end(),
                                    [&](const RecvState& r) { return wants(r, name); });
  if (receive == receives_.end()) return;
  auto node = arrivals_.extract(name);
  consume(*receive, name, std::move(node.mapped()));
}

void PointToPoint::consume(RecvState& receive, const Name& name, Arrival arrival) {
  receive.matched = true;
  receive.name = name;
  receive.ticket->source = rank_of(name.peer);
  const Buffer& to = receive.request.outputs.at(0);
  if (to.bytes != arrival.bytes) {
    Error error{ErrorCode::mismatch, "recv: rank " + std::to_string(rank_of(name.peer)) +
                                         " sends " + std::to_string(arrival.bytes) +
                                         " bytes, this rank receives " + std::to_string(to.bytes) +
                                         " (tag " + std::to_string(name.tag) + ")"};
    send_accept(name, true, error);
    finish_receive(receive, std::move(error));
    return;
  }
  if (arrival.eager) {
    if (to.bytes > 0) std::memcpy(to.data, arrival.payload.data(), to.bytes);
    send_accept(name, true, {});
    finish_receive(receive, {});
    return;
  }
  receive.token = context_.token(*this);
  receive.segments_left = segments_of(to.bytes);
  if (elastic_) {
    receive.preimage = std::make_unique<Preimage>(context_.pool, receive.request.outputs);
    receive.preimage->save(0, 0, to.bytes);
  }
  const auto self = std::find_if(receives_.begin(), receives_.end(),
                                 [&](const RecvState& r) { return &r == &receive; });
  receive_tokens_[receive.token] = self;
  send_accept(name, false, {});
}

Placement PointToPoint::segment_header(PeerId from, const SegmentHeader& header) {
  const Name name{from, header.op.step, header.op.index};
  if (header.kind == SegmentKind::eager) {  // matched when it is complete
    Arrival& arrival = arrivals_[name];
    arrival.eager = true;
    arrival.bytes = header.bytes;
    arrival.order = ++order_;
    arrival.payload = context_.pool.take(header.bytes);
    eager_arriving_[arrival.order] = name;
    return {arrival.payload.data(), eager_token_, arrival.order};
  }
  for (const auto& [token, receive] : receive_tokens_) {
    const Buffer& to = receive->request.outputs.at(0);
    if (receive->name == name && header.offset + header.bytes <= to.bytes) {
      return {to.data + header.offset, token, 0};
    }
  }
  return {};
}

void PointToPoint::segment_arrived(PeerId, const SegmentHeader& header, const Placement& at) {
  if (at.token == eager_token_) {
    const auto node = eager_arriving_.extract(at.cookie);
    if (node.empty()) return;
    const auto arrival = arrivals_.find(node.mapped());
    if (arrival == arrivals_.end()) return;
    if (header.epoch < epoch_) {
      arrivals_.erase(arrival);
      return;
    }
    arrival->second.here = true;
    match_arrival(arrival->first);
    return;
  }
  const auto it = receive_tokens_.find(at.token);
  if (it == receive_tokens_.end()) return;
  RecvState& receive = *it->second;
  if (--receive.segments_left > 0) return;
  if (elastic_) send_accept(receive.name, true, {});
  finish_receive(receive, {});
}

void PointToPoint::adopt(PeerId from, const SegmentHeader& header, PoolBuffer payload) {
  if (header.epoch < epoch_) return;
  const Name name{from, header.op.step, header.op.index};
  Arrival& arrival = arrivals_[name];
  arrival.eager = true;
  arrival.here = true;
  arrival.bytes = header.bytes;
  arrival.order = ++order_;
  arrival.payload = std::move(payload);
  match_arrival(name);
}

void PointToPoint::announced(PeerId from, const Announce& message) {
  if (message.epoch < epoch_) return;
  const Name name{from, message.tag, message.index};
  Arrival& arrival = arrivals_[name];
  arrival.bytes = message.bytes;
  arrival.order = ++order_;
  match_arrival(name);
}

void PointToPoint::finish_receive(RecvState& receive, Error error) {
  const auto it = std::find_if(receives_.begin(), receives_.end(),
                               [&](const RecvState& r) { return &r == &receive; });
  if (receive.token != 0) {
    receive_tokens_.erase(receive.token);
    context_.retire(receive.token);
  }
  if (error.failed() && receive.preimage) receive.preimage->restore();
  RecvState ended = std::move(*it);
  receives_.erase(it);
  ended.ticket->complete(std::move(error));
}

// ---------------------------------------------------------------------------------------- failures

std::string PointToPoint::describe(const OpRequest& request) {
  const std::uint64_t bytes = total_bytes(request.inputs) + total_bytes(request.outputs);
  const std::string other = request.peer < 0 ? "any rank" : "rank " + std::to_string(request.peer);
  return (request.descriptor.kind == OpKind::send ? "send to " : "recv from ") + other + " (tag " +
         std::to_string(request.tag) + ", " + std::to_string(bytes) + " bytes)";
}

Error PointToPoint::about(const Common& which, const Error& error) {
  return {error.code,
          describe(which.request) + ", after " + seconds(which.waited_ms) + ": " + error.text};
}

void PointToPoint::peer_left(PeerId peer, const Error& error, bool last) {
  std::vector<Name> sends;
  for (const auto& [name, send] : sends_) {
    if (name.peer == peer) sends.push_back(name);
  }
  for (const Name& name : sends) finish_send(name, about(sends_.at(name), error));
  fail_receives(error, [&](const RecvState& r) {
    if (r.matched) return false;
    const std::int32_t from = r.request.peer;
    return from < 0 ? last : numbering_.at(static_cast<std::size_t>(from)) == peer;
  });
}

void PointToPoint::peer_gone(PeerId peer, const Error& error) {
  fail_receives(error, [&](const RecvState& r) { return r.matched && r.name.peer == peer; });
}

void PointToPoint::withdrawn(PeerId from, const Withdraw& message) {
  if (message.epoch != epoch_) return;
  const Name name{from, message.tag, message.index};
  arrivals_.erase(name);
  const Error error{message.error.code, "rank " + std::to_string(rank_of(from)) +
                                            " has given up its send: " + message.error.text};
  fail_receives(error, [&](const RecvState& r) { return r.matched && r.name == name; });
}

void PointToPoint::withdraw(const Name& name, const SendState& send, const Error& error) {
  if (send.eager) return;
  context_.links.send_control(
      name.peer, encode(PeerToPeer{Withdraw{group_, epoch_, name.tag, name.index, error}}));
}

void PointToPoint::withdraw_all(const Error& error) {
  for (const auto& [name, send] : sends_) withdraw(name, send, error);
}

template <typename Which>
void PointToPoint::fail_receives(const Error& error, Which&& which) {
  std::vector<RecvState*> receives;
  for (RecvState& r : receives_) {
    if (which(std::as_const(r))) receives.push_back(&r);
  }
  for (RecvState* r : receives) finish_receive(*r, about(*r, error));
}

void PointToPoint::fail_all(const Error& error) {
  while (!sends_.empty()) {
    const auto& [name, send] = *sends_.begin();
    finish_send(Name(name), about(send, error));
  }
  while (!receives_.empty()) finish_receive(receives_.front(), about(receives_.front(), error));
}

std::vector<std::shared_ptr<Ticket>> PointToPoint::tickets() const {
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (const auto& [name, send] : sends_) tickets.push_back(send.ticket);
  for (const RecvState& receive : receives_) tickets.push_back(receive.ticket);
  return tickets;
}

void PointToPoint::tick(std::uint64_t elapsed_ms, bool holding) {
  if (holding) return;
  const auto late = [&](Common& common) -> std::optional<Error> {
    common.waited_ms += elapsed_ms;
    if (common.waited_ms >= kSayWaitingMs && !common.said_waiting) {
      common.said_waiting = true;
      log_info(describe(common.request) + " has been waiting for " +
               std::to_string(common.waited_ms / 1000) + " s");
    }
    if (common.request.timeout_ms == 0 || common.waited_ms < common.request.timeout_ms) return {};
    return Error{ErrorCode::timed_out, describe(common.request) +
                                           " did not finish within its timeout of " +
                                           std::to_string(common.request.timeout_ms) +
                                           " ms: the other side has not posted its part"};
  };
  std::vector<std::pair<Name, Error>> sends;
  for (auto& [name, send] : sends_) {
    if (auto error = late(send)) sends.emplace_back(name, *error);
  }
  for (auto& [name, error] : sends) {
    withdraw(name, sends_.at(name), error);
    finish_send(name, error);
  }
  std::vector<std::pair<RecvState*, Error>> receives;
  for (RecvState& r : receives_) {
    if (auto error = late(r)) receives.emplace_back(&r, *error);
  }
  for (auto& [r, error] : receives) finish_receive(*r, error);
}

}  // namespace pccl
