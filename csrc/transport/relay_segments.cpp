// Segments over a third peer: a window of them is under way, sealed in copies of their own. What
// arrives lies in a copy until it is whole and opened.
#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "base/limits.h"
#include "transport/last_word.h"
#include "transport/relay.h"

namespace pccl {

/// Memory for `bytes` on their way over `via`, and its token. Throws std::bad_alloc.
std::byte* RelayLinks::copy(std::map<MemoryToken, Copy>& copies, PeerId via, std::size_t bytes,
                            MemoryToken& token) {
  token = kMark | ++copies_;
  const auto made = copies.emplace(token, Copy{via, buffers_.take(bytes)}).first;
  return made->second.buffer.data();
}

/// The direct link to `via` has ended, or ends: neither sends nor writes any of these.
void RelayLinks::forget_copies(PeerId via) {
  for (auto* copies : {&sealed_, &arriving_}) {
    for (auto it = copies->begin(); it != copies->end();) {
      if (it->second.via != via) {
        ++it;
        continue;
      }
      direct_->cancel(it->first);
      it = copies->erase(it);
    }
  }
}

bool RelayLinks::sends_over(PeerId via) const {
  return std::any_of(sealed_.begin(), sealed_.end(),
                     [via](const auto& entry) { return entry.second.via == via; });
}

// --------------------------------------------------------------------------------- what is sent

void RelayLinks::send_segment(PeerId peer, const SegmentHeader& header, const std::byte* payload,
                              MemoryToken token, std::uint64_t cookie) {
  Far* far = find_up(peer);
  if (far == nullptr) {
    if (!is_leaving(peer)) direct_->send_segment(peer, header, payload, token, cookie);
    return;
  }
  far->queue.push_back({header, payload, token, cookie});
  far->queued_bytes += relay_cost(header.bytes);
  pump(*far);
}

void RelayLinks::pump(Far& far) {
  try {
    hand_over(far);
  } catch (const std::bad_alloc&) {
    // The number of a sealed segment may be used and the segment not sent.
    last_word([&] { fail(far, no_memory_for("what goes to it over a third peer")); });
  }
}

void RelayLinks::hand_over(Far& far) {
  while (!far.queue.empty()) {
    Queued next = far.queue.front();
    const std::size_t out = far.handed_bytes + far.on_the_way;
    const std::size_t cost = relay_cost(next.header.bytes);
    if (out > 0 && out + cost > kRelayWindowBytes) return;
    std::byte* into = copy(sealed_, far.via, next.header.bytes, next.sent_as);
    far.queue.pop_front();
    far.queued_bytes -= cost;
    far.handed_bytes += cost;
    ++far.sent;
    const SegmentHeader sealed = far.seal->seal(next.header, next.payload, into);
    far.handed.push_back(next);
    direct_->send_segment(far.via, sealed, into, next.sent_as, next.cookie);
  }
}

void RelayLinks::routed_sent(PeerId to, MemoryToken token, std::uint64_t) {
  if (Passage::owns(token)) return passage_->sent(token);
  auto node = sealed_.extract(token);
  if (node.empty()) return;
  buffers_.give_back(std::move(node.mapped().buffer));
  ++copies_sent_;
  for (auto* fars : {&far_, &closing_}) {
    const auto found = fars->find(to);
    if (found == fars->end()) continue;
    Far& far = found->second;
    const auto sent = std::find_if(far.handed.begin(), far.handed.end(),
                                   [&](const Queued& q) { return q.sent_as == token; });
    if (sent == far.handed.end()) continue;  // of an earlier link
    far.handed_bytes -= relay_cost(sent->header.bytes);
    far.on_the_way += relay_cost(sent->header.bytes);
    const Queued done = *sent;
    far.handed.erase(sent);
    if (fars == &far_ && done.tells) events_.segment_sent(to, done.cookie);
    return;
  }
}

void RelayLinks::take_credit(Far& far, std::uint64_t bytes) {
  far.on_the_way -= std::min<std::uint64_t>(bytes, far.on_the_way);
  pump(far);
}

void RelayLinks::cancel(MemoryToken token) {
  direct_->cancel(token);
  for (auto* fars : {&far_, &closing_}) {
    for (auto& [peer, far] : *fars) {
      std::erase_if(far.queue, [token, &far = far](const Queued& q) {
        if (q.token != token) return false;
        far.queued_bytes -= relay_cost(q.header.bytes);
        return true;
      });
      // What is sealed has its number, and is sent.
      for (Queued& q : far.handed) q.tells = q.tells && q.token != token;
    }
  }
  std::vector<PeerId> closing;
  for (const auto& [peer, far] : closing_) closing.push_back(peer);
  for (const PeerId peer : closing) pay(peer);
}

std::size_t RelayLinks::queued_bytes(PeerId peer) const {
  std::size_t bytes = direct_->queued_bytes(peer);
  for (const auto* fars : {&far_, &closing_}) {
    const auto found = fars->find(peer);
    if (found != fars->end()) bytes += found->second.queued_bytes + found->second.handed_bytes;
  }
  return bytes;
}

// ------------------------------------------------------------------------------ what arrives

Placement RelayLinks::segment_header(PeerId peer, const SegmentHeader& header) {
  if (!header.route.relayed()) {
    return is_leaving(peer) ? Placement{} : events_.segment_header(peer, header);
  }
  if (reads_no_answers(peer)) return {};
  if (header.route.to != self()) return passage_->take_in(peer, header);
  Far* far = find_session(header.route.from, header.route.session);
  if (far == nullptr || far->via != peer || !far->seal->has_keys()) return {};
  Placement at;
  try {
    at.to = copy(arriving_, peer, header.bytes, at.token);
  } catch (const std::bad_alloc&) {
    give_up(header.route.from, no_memory_for("what it sends over a third peer"));
  }
  return at;
}

/// What is relayed is copied: it has to be opened.
void RelayLinks::segment_part(PeerId peer, const SegmentHeader& header, const Placement& at,
                              std::uint32_t offset, std::span<const std::byte> bytes) {
  if (!is_leaving(peer)) events_.segment_part(peer, header, at, offset, bytes);
}

void RelayLinks::segment_arrived(PeerId peer, const SegmentHeader& header, const Placement& at) {
  if (!header.route.relayed()) {
    if (!is_leaving(peer)) events_.segment_arrived(peer, header, at);
    return;
  }
  if (Passage::owns(at.token)) return passage_->arrived(header, at.token);
  auto node = arriving_.extract(at.token);
  if (node.empty()) return;
  came(header, node.mapped().buffer.data());
  buffers_.give_back(std::move(node.mapped().buffer));
}

/// The relayed link may have ended since the segment began to come; and the owner may end it in
/// each call: no callback follows then.
void RelayLinks::came(const SegmentHeader& header, std::byte* payload) {
  const Route& route = header.route;
  Far* far = find_session(route.from, route.session);
  if (far == nullptr) return;
  const auto opened = far->seal->open(header, payload, clock_.now_ms());
  if (!opened) return distrust(*far, opened.error().text);
  if (far->state == State::opening) now_up(*far);  // the sender has our keys
  if (find_session(route.from, route.session) == nullptr) return;
  const SegmentHeader& plain = opened.value();
  const Placement at = events_.segment_header(route.from, plain);
  if (find_session(route.from, route.session) == nullptr) return;
  if (at.to != nullptr) {
    std::memcpy(at.to, payload, plain.bytes);
    events_.segment_arrived(route.from, plain, at);
  }
  count_received(route);
}

void RelayLinks::count_received(const Route& route) {
  Far* far = find_session(route.from, route.session);
  if (far == nullptr) return;
  ++far->received;
  if (far->ends_after && far->received >= *far->ends_after) fail(*far, far->why);
}

}  // namespace pccl
