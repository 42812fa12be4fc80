#include "engine/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "wire/codec.h"

namespace pccl {
namespace {

const Error kNoMemory{ErrorCode::no_memory, "this rank has no memory for it"};

// In the log, of a send that has not begun.
constexpr const char* kBehindOthers = ": so many earlier ones to that rank are without a receive";

// What one peer may have sent in two epochs and the other may have to keep.
static_assert(2 * (kUngrantedBytesMax + kEagerSendsMax * kSmallSegmentBytesMax +
                   kAnnouncedSendsMax * kKeptMessageBytes) <
              kKeptBytesMax);

/// Where a segment of no bytes goes, of which nothing is written.
std::byte* nothing() {
  static std::byte byte;
  return &byte;
}

}  // namespace

PointToPoint::PointToPoint(EngineContext& context, MessageWatcher& watcher, GroupId group,
                           EpochId epoch, bool confirmed)
    : context_(context), watcher_(&watcher), group_(group), epoch_(epoch), confirmed_(confirmed) {}

PointToPoint::~PointToPoint() {
  watcher_ = nullptr;
  fail_all({ErrorCode::closed, "the group has been closed"});
  for (const auto& [peer, token] : eager_tokens_) context_.retire(token);
  for (const auto& [peer, sends] : eager_sends_) {
    context_.windows.of(peer).eager_sends -= sends.size();
  }
}

void PointToPoint::close() {
  for (auto& [peer, sends] : std::exchange(eager_sends_, {})) {
    if (sends.empty()) continue;
    Windows::Rest& rest = context_.windows.left_behind(peer, group_);
    rest.epoch = epoch_;
    rest.eager_sends = std::move(sends);
  }
}

void PointToPoint::post(OpRequest request, std::shared_ptr<Ticket> ticket) {
  const std::vector<PeerId>& ranks = *request.numbering;
  if (request.descriptor.kind == OpKind::send) {
    const PeerId to = ranks.at(static_cast<std::size_t>(request.peer));
    const SendName name{to, request.tag, next_index_[to]++};
    SendState& send = sends_[name];
    send.request = std::move(request);
    send.ticket = std::move(ticket);
    const bool behind = waiting_.contains(to);
    if (behind || !begin_send(name, send)) waiting_[to].push_back(name);
    return;
  }
  Matcher::Receive wanted{++last_receive_, request.tag, {}, request.numbering};
  if (request.peer >= 0) wanted.from = ranks.at(static_cast<std::size_t>(request.peer));
  ReceiveState& receive = receives_[wanted.id];
  receive.request = std::move(request);
  receive.ticket = std::move(ticket);
  if (const auto pair = matcher_.post(std::move(wanted))) consume(*pair);
}

// ------------------------------------------------------------------------------------------- sends

SegmentHeader PointToPoint::header_of(const SendName& name, const SendState& send) const {
  SegmentHeader header;
  header.kind = send.eager ? SegmentKind::eager : SegmentKind::message;
  header.group = group_;
  header.epoch = epoch_;
  header.op = OpKey{name.tag, name.index};
  header.descriptor.kind = OpKind::send;
  header.descriptor.count = send.request.inputs.at(0).bytes;
  return header;
}

/// False: the receiver's window is full, and the send has to wait.
bool PointToPoint::begin_send(const SendName& name, SendState& send) {
  const std::uint64_t bytes = send.request.inputs.at(0).bytes;
  Window& window = context_.windows.of(name.peer);
  const bool all_there = bytes_there(send) >= bytes;
  if (bytes <= kSmallSegmentBytesMax && window.eager_sends < kEagerSendsMax && all_there) {
    ++window.eager_sends;
    eager_sends_[name.peer].push_back(name.index);
    send.eager = true;
    stream(name, send);
    return true;
  }
  if (window.announced_sends >= kAnnouncedSendsMax) return false;
  ++window.announced_sends;
  send.announced = send.unanswered = true;
  context_.links.send_control(
      name.peer, encode(PeerToPeer{Announce{group_, epoch_, name.tag, name.index, bytes}}));
  return true;
}

/// Begins the sends that wait, as far as the receiver's window has room.
void PointToPoint::begin_sends(PeerId peer) {
  const auto waiting = waiting_.find(peer);
  if (waiting == waiting_.end()) return;
  std::deque<SendName>& names = waiting->second;
  for (; !names.empty(); names.pop_front()) {
    const SendName& name = names.front();
    const auto send = sends_.find(name);
    if (send == sends_.end()) {  // given up: its number has to come all the same
      context_.links.send_control(
          peer,
          encode(PeerToPeer{Withdraw{
              group_, epoch_, name.tag, name.index, {ErrorCode::timed_out, "its time was over"}}}));
    } else if (!begin_send(name, send->second)) {
      return;
    }
  }
  waiting_.erase(waiting);
}

/// The receiver has taken this announced send, or does not keep it any more.
void PointToPoint::answered(const SendName& name, SendState& send) {
  if (!std::exchange(send.unanswered, false)) return;
  --context_.windows.of(name.peer).announced_sends;
}

/// Begins with the first segments and goes on with the others as they come.
void PointToPoint::stream(const SendName& name, SendState& send) {
  const Buffer& from = send.request.inputs.at(0);
  if (send.token == 0) {
    send.token = context_.token(*this);
    send_tokens_[send.token] = name;
    send.segments_left = segments_of(from.bytes);
  }
  const std::uint64_t there = bytes_there(send);
  for (std::uint64_t& i = send.segments_begun; i < segments_of(from.bytes); ++i) {
    SegmentHeader header = header_of(name, send);
    header.offset = i * kSegmentBytesMax;
    header.bytes = bytes_of_segment(from.bytes, i);
    if (header.offset + header.bytes > there) return;
    context_.links.send_segment(name.peer, header, from.data + header.offset, send.token,
                                EngineContext::cookie(send.token, static_cast<std::uint32_t>(i)));
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
  const SendName name = it->second;
  SendState& send = sends_.at(name);
  if (--send.segments_left > 0) return;
  send.has_left = true;
  // The small ones stay on the books until the receiver has them: their number is bounded.
  if (!confirmed_) finish_send(name, {});
}

/// A small send is received there, or does not come any more.
void PointToPoint::window_back(const SendName& name) {
  auto& sends = eager_sends_[name.peer];
  const auto send = std::find(sends.begin(), sends.end(), name.index);
  if (send == sends.end()) return;
  sends.erase(send);
  --context_.windows.of(name.peer).eager_sends;
}

void PointToPoint::accepted(PeerId from, const Accept& message) {
  const SendName name{from, message.tag, message.index};
  const auto it = sends_.find(name);
  if (message.complete) window_back(name);
  if (it != sends_.end()) answered(name, it->second);
  if (message.complete && !message.error.failed()) {
    if (confirmed_) finish_send(name, {});
  } else if (it != sends_.end()) {
    if (message.error.failed()) {
      finish_send(name, message.error);
    } else if (it->second.token == 0) {
      stream(name, it->second);
    }
  }
  begin_sends(from);
}

void PointToPoint::finish_send(const SendName& name, Error error) {
  auto node = sends_.extract(name);
  if (node.empty()) return;
  SendState& send = node.mapped();
  answered(name, send);
  if (send.token != 0) {
    send_tokens_.erase(send.token);
    context_.retire(send.token);
  }
  send.ticket->complete(std::move(error));
  moved();
}

/// So that its receiver does not wait for it, nor for its number. A small send that has left
/// arrives all the same.
void PointToPoint::withdraw(const SendName& name, const SendState& send, const Error& error) {
  if (send.eager && send.has_left) return;
  if (!send.eager && !send.announced) return;  // at its turn: begin_sends
  if (send.eager) window_back(name);
  context_.links.send_control(
      name.peer, encode(PeerToPeer{Withdraw{group_, epoch_, name.tag, name.index, error}}));
}

void PointToPoint::withdraw_all(const Error& error) {
  for (const auto& [name, send] : sends_) {
    if (!send.eager) withdraw(name, send, error);
  }
}

// ---------------------------------------------------------------------------------------- receives

void PointToPoint::send_accept(const SendName& name, bool complete, Error error) {
  context_.links.send_control(
      name.peer,
      encode(PeerToPeer{Accept{group_, epoch_, name.tag, name.index, complete, std::move(error)}}));
}

/// The first news of a send. False: nobody takes it.
bool PointToPoint::comes(const SendName& name, std::uint64_t bytes, bool eager) {
  switch (matcher_.arrive(name)) {
    case Matcher::News::withdrawn:
      if (const auto of = given_up_.find(name.peer); of != given_up_.end()) {
        of->second.erase(name.index);
      }
      return false;
    case Matcher::News::again:
      context_.breaks_rules(name.peer, "it has named its send number " +
                                           std::to_string(name.index) + " (tag " +
                                           std::to_string(name.tag) + ") twice");
      return false;
    case Matcher::News::fresh:
      break;
  }
  auto kept = context_.keep(name.peer, eager ? kept_cost(bytes) : kKeptMessageBytes);
  if (!kept) return false;
  arrivals_[name] = Arrival{bytes, eager, {}, std::move(*kept)};
  return true;
}

void PointToPoint::announced(PeerId from, const Announce& message) {
  const SendName name{from, message.tag, message.index};
  if (!comes(name, message.bytes, false)) return;
  matcher_.ready(name);
  settle(from);
}

Placement PointToPoint::segment_header(PeerId from, const SegmentHeader& header) {
  return header.kind == SegmentKind::eager ? eager_header(from, header)
                                           : message_header(from, header);
}

/// A small send: matched when it is whole.
Placement PointToPoint::eager_header(PeerId from, const SegmentHeader& header) {
  const SendName name{from, header.op.step, header.op.index};
  if (header.offset != 0 || header.bytes > kSmallSegmentBytesMax) {
    context_.breaks_rules(from, "a small send is one segment, and not " +
                                    std::to_string(header.bytes) + " bytes at " +
                                    std::to_string(header.offset));
    return {};
  }
  if (!comes(name, header.bytes, true)) return {};
  PoolBuffer payload;
  try {
    payload = context_.pool.take(header.bytes);
  } catch (const std::bad_alloc&) {
    matcher_.ready(name);
    settle(from);
    return {};
  }
  settle(from);  // of those behind it, which waited for this news
  MemoryToken& token = eager_tokens_[from];
  if (token == 0) token = context_.token(*this);
  const Placement at{payload.data(), token, ++last_cookie_};
  arriving_.emplace(at.cookie, Arriving{name, std::move(payload)});
  return at;
}

Placement PointToPoint::message_header(PeerId from, const SegmentHeader& header) {
  const SendName name{from, header.op.step, header.op.index};
  const auto receiving = receiving_.find(name);
  if (receiving == receiving_.end()) return {};  // the receive has ended
  ReceiveState& receive = receives_.at(receiving->second);
  const Buffer& to = receive.request.outputs.at(0);
  const auto segment = segment_at(to.bytes, header.offset, header.bytes);
  if (!segment || !receive.segments.take(*segment)) {
    context_.breaks_rules(from, std::string(segment ? "a segment came twice: " : "no segment: ") +
                                    std::to_string(header.bytes) + " bytes at " +
                                    std::to_string(header.offset) + " of a message of " +
                                    std::to_string(to.bytes));
    return {};
  }
  return {to.bytes > 0 ? to.data + header.offset : nothing(), receive.token, 0};
}

void PointToPoint::segment_arrived(PeerId, const SegmentHeader&, const Placement& at) {
  if (auto node = arriving_.extract(at.cookie)) {
    Arriving& whole = node.mapped();
    const auto arrival = arrivals_.find(whole.name);
    if (arrival == arrivals_.end()) return;  // withdrawn meanwhile
    arrival->second.payload = std::move(whole.payload);
    matcher_.ready(whole.name);
    return settle(whole.name.peer);
  }
  const auto id = receive_tokens_.find(at.token);
  if (id == receive_tokens_.end()) return;
  ReceiveState& receive = receives_.at(id->second);
  if (!receive.segments.arrived()) return;
  if (confirmed_) send_accept(receive.name, true, {});
  finish_receive(id->second, {});
}

void PointToPoint::adopt(PeerId from, const SegmentHeader& header, PoolBuffer payload) {
  const SendName name{from, header.op.step, header.op.index};
  if (header.kind != SegmentKind::eager || header.bytes > kSmallSegmentBytesMax) return;
  if (!comes(name, header.bytes, true)) return;
  arrivals_.at(name).payload = std::move(payload);
  matcher_.ready(name);
  settle(from);
}

void PointToPoint::settle(PeerId peer) {
  for (const Matcher::Pair& pair : matcher_.settle(peer)) consume(pair);
  moved();
}

void PointToPoint::consume(const Matcher::Pair& pair) {
  const SendName& name = pair.send;
  ReceiveState& receive = receives_.at(pair.receive);
  const Arrival arrival = std::move(arrivals_.extract(name).mapped());
  receive.matched = true;
  receive.name = name;
  const std::vector<PeerId>& ranks = *receive.request.numbering;
  const auto rank = std::find(ranks.begin(), ranks.end(), name.peer);
  receive.ticket->result<ReceiveResult>().source = static_cast<std::int32_t>(rank - ranks.begin());
  const Buffer& to = receive.request.outputs.at(0);
  if (to.bytes != arrival.bytes) {
    return refuse(pair.receive,
                  {ErrorCode::mismatch,
                   "recv: " + rank_text(receive.request, name.peer) + " sends " +
                       std::to_string(arrival.bytes) + " bytes, this rank receives " +
                       std::to_string(to.bytes) + " (tag " + std::to_string(name.tag) + ")"});
  }
  if (!arrival.eager) return begin_receive(pair.receive, receive);
  if (!arrival.payload) return refuse(pair.receive, about(receive, kNoMemory));
  if (to.bytes > 0) std::memcpy(to.data, arrival.payload.data(), to.bytes);
  send_accept(name, true, {});
  finish_receive(pair.receive, {});
}

/// The send is announced: its segments may come.
void PointToPoint::begin_receive(ReceiveId id, ReceiveState& receive) {
  const std::uint64_t bytes = receive.request.outputs.at(0).bytes;
  try {
    if (confirmed_) {
      receive.preimage = std::make_unique<Preimage>(context_.pool, receive.request.outputs);
      receive.preimage->save(0, 0, bytes);
    }
    receive.segments = SegmentSet(bytes);
  } catch (const std::bad_alloc&) {
    return refuse(id, about(receive, kNoMemory));
  }
  receive.token = context_.token(*this);
  receive_tokens_[receive.token] = id;
  receiving_[receive.name] = id;
  send_accept(receive.name, false, {});
}

/// Fails a receive that cannot use the send which it has taken, and fails that send.
void PointToPoint::refuse(ReceiveId id, const Error& error) {
  send_accept(receives_.at(id).name, true, error);
  finish_receive(id, error);
}

void PointToPoint::finish_receive(ReceiveId id, Error error) {
  auto node = receives_.extract(id);
  ReceiveState& receive = node.mapped();
  if (!receive.matched) matcher_.cancel(id);
  if (receive.token != 0) {
    receiving_.erase(receive.name);
    receive_tokens_.erase(receive.token);
    context_.retire(receive.token);
  }
  if (error.failed() && receive.preimage) receive.preimage->restore();
  receive.ticket->complete(std::move(error));
  moved();
}

void PointToPoint::link_gone(PeerId peer) {
  const auto token = eager_tokens_.find(peer);
  if (token == eager_tokens_.end()) return;
  context_.retire(token->second);
  eager_tokens_.erase(token);
  std::erase_if(arriving_, [&](const auto& entry) { return entry.second.name.peer == peer; });
}

// ---------------------------------------------------------------------------------------- failures

std::string PointToPoint::rank_text(const OpRequest& request, PeerId peer) {
  const auto at = std::find(request.numbering->begin(), request.numbering->end(), peer);
  return "rank " + std::to_string(at - request.numbering->begin());
}

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
  waiting_.erase(peer);
  std::vector<SendName> sends;
  for (const auto& [name, send] : sends_) {
    if (name.peer == peer) sends.push_back(name);
  }
  for (const SendName& name : sends) finish_send(name, about(sends_.at(name), error));
  fail_receives(error, [&](const ReceiveState& r) {
    if (r.matched) return false;
    const std::int32_t from = r.request.peer;
    return from < 0 ? last : r.request.numbering->at(static_cast<std::size_t>(from)) == peer;
  });
}

void PointToPoint::peer_gone(PeerId peer, const Error& error) {
  fail_receives(error, [&](const ReceiveState& r) { return r.matched && r.name.peer == peer; });
}

void PointToPoint::withdrawn(PeerId from, const Withdraw& message) {
  const SendName name{from, message.tag, message.index};
  if (matcher_.withdraw(name)) {
    if (arrivals_.erase(name) == 0) {
      auto& given_up = given_up_[from];
      if (auto kept = context_.keep(from, kKeptMessageBytes)) {
        given_up.insert_or_assign(name.index, std::move(*kept));
      }
      while (const auto forgotten = matcher_.forget_withdrawn(from)) given_up.erase(*forgotten);
    }
    return settle(from);
  }
  std::vector<ReceiveId> ids;
  if (const auto id = receiving_.find(name); id != receiving_.end()) ids.push_back(id->second);
  for (const ReceiveId id : ids) {
    const ReceiveState& receive = receives_.at(id);
    finish_receive(id, about(receive, {message.error.code,
                                       rank_text(receive.request, from) +
                                           " has given up its send: " + message.error.text}));
  }
}

template <typename Which>
void PointToPoint::fail_receives(const Error& error, Which&& which) {
  std::vector<ReceiveId> ids;
  for (const auto& [id, receive] : receives_) {
    if (which(receive)) ids.push_back(id);
  }
  for (const ReceiveId id : ids) finish_receive(id, about(receives_.at(id), error));
}

void PointToPoint::fail_all(const Error& error) {
  waiting_.clear();
  while (!sends_.empty()) {
    const auto& [name, send] = *sends_.begin();
    finish_send(SendName(name), about(send, error));
  }
  while (!receives_.empty()) {
    const auto& [id, receive] = *receives_.begin();
    finish_receive(ReceiveId(id), about(receive, error));
  }
}

std::vector<std::shared_ptr<Ticket>> PointToPoint::tickets() const {
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (const auto& [name, send] : sends_) tickets.push_back(send.ticket);
  for (const auto& [id, receive] : receives_) tickets.push_back(receive.ticket);
  return tickets;
}

void PointToPoint::tick(std::uint64_t elapsed_ms) {
  std::vector<PeerId> full;  // sends of another group may have made room
  for (const auto& [peer, names] : waiting_) full.push_back(peer);
  for (const PeerId peer : full) begin_sends(peer);

  waiting_lines_.begin(elapsed_ms);
  const Common* last_unsaid = nullptr;
  const auto late = [&](Common& common, const char* why, PeerId to) -> std::optional<Error> {
    common.waited_ms += elapsed_ms;
    if (common.waited_ms >= kSayWaitingMs && !common.said_waiting) {
      common.said_waiting = true;
      if (waiting_lines_.admit()) {
        log_info(describe(common.request) + " has been waiting for " +
                 std::to_string(common.waited_ms / 1000) + " s" + why);
      } else {
        last_unsaid = &common;
      }
    }
    if (common.request.timeout_ms == 0 || common.waited_ms < common.request.timeout_ms) return {};
    const std::string known = context_.links.trouble_text(to);
    return Error{ErrorCode::timed_out,
                 describe(common.request) + " did not finish within its timeout of " +
                     std::to_string(common.request.timeout_ms) +
                     " ms: " + (known.empty() ? "the other side has not posted its part" : known)};
  };
  std::vector<std::pair<SendName, Error>> sends;
  for (auto& [name, send] : sends_) {
    const bool begun = send.eager || send.announced;
    if (auto error = late(send, begun ? "" : kBehindOthers, name.peer)) {
      sends.emplace_back(name, *error);
    }
  }
  std::vector<std::pair<ReceiveId, Error>> receives;
  for (auto& [id, receive] : receives_) {
    if (auto error = late(receive, "", PeerId{})) receives.emplace_back(id, *error);
  }
  waiting_lines_.end("more sends and receives", "one",
                     last_unsaid == nullptr ? "" : describe(last_unsaid->request));
  for (auto& [name, error] : sends) {
    withdraw(name, sends_.at(name), error);
    finish_send(name, error);
  }
  for (auto& [id, error] : receives) {
    const auto receive = receives_.find(id);
    if (receive == receives_.end()) continue;
    if (receive->second.matched) {
      refuse(id, error);
    } else {
      finish_receive(id, error);
    }
  }
}

}  // namespace pccl
