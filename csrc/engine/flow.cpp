#include "engine/flow.h"

#include <algorithm>

#include "wire/codec.h"

namespace pccl {

bool Flow::may_leave(const PeerFlow& flow, const SegmentHeader& header) const {
  return header.op < flow.granted || flow.ungranted_bytes + header.bytes <= kUngrantedBytesMax;
}

void Flow::pass(PeerId peer, PeerFlow& flow, const Held& segment) {
  if (!(segment.header.op < flow.granted)) {
    flow.ungranted_bytes += segment.header.bytes;
    flow.ungranted[segment.header.op] += segment.header.bytes;
  }
  context_.links.send_segment(peer, segment.header, segment.data, segment.token,
                              EngineContext::cookie(segment.token, segment.index));
}

void Flow::send(PeerId peer, const SegmentHeader& header, const std::byte* data, MemoryToken token,
                std::uint32_t index) {
  PeerFlow& flow = peers_[peer];
  const Held segment{header, data, token, index};
  if (may_leave(flow, header)) {
    pass(peer, flow, segment);
    return;
  }
  flow.held.push_back(segment);
  if (flow.asked.insert(header.op).second) {
    context_.links.send_control(peer, encode(PeerToPeer{Want{group_, header.op}}));
  }
}

void Flow::granted(PeerId peer, OpKey issued) {
  PeerFlow& flow = peers_[peer];
  if (issued <= flow.granted) return;
  flow.granted = issued;
  while (!flow.ungranted.empty() && flow.ungranted.begin()->first < issued) {
    flow.ungranted_bytes -= flow.ungranted.begin()->second;
    flow.ungranted.erase(flow.ungranted.begin());
  }
  flow.asked.erase(flow.asked.begin(), flow.asked.lower_bound(issued));
  std::deque<Held> still;
  for (const Held& segment : std::exchange(flow.held, {})) {
    if (may_leave(flow, segment.header)) {
      pass(peer, flow, segment);
    } else {
      still.push_back(segment);
    }
  }
  flow.held = std::move(still);
}

void Flow::tell(PeerId peer, PeerFlow& flow, OpKey issued) {
  flow.received_bytes = 0;
  flow.wants.erase(flow.wants.begin(), flow.wants.lower_bound(issued));
  context_.links.send_control(peer, encode(PeerToPeer{Grant{group_, issued}}));
}

void Flow::wanted(PeerId peer, OpKey op, OpKey issued) {
  PeerFlow& flow = peers_[peer];
  if (op < issued) {
    tell(peer, flow, issued);
  } else {
    flow.wants.insert(op);
    any_wants_ = true;
  }
}

void Flow::issued(OpKey issued) {
  if (!any_wants_) return;
  any_wants_ = false;
  for (auto& [peer, flow] : peers_) {
    if (!flow.wants.empty() && *flow.wants.begin() < issued) tell(peer, flow, issued);
    any_wants_ = any_wants_ || !flow.wants.empty();
  }
}

void Flow::received(PeerId peer, std::uint32_t bytes, OpKey issued) {
  PeerFlow& flow = peers_[peer];
  flow.received_bytes += bytes;
  if (flow.received_bytes >= kUngrantedBytesMax / 4) tell(peer, flow, issued);
}

void Flow::cancel(MemoryToken token) {
  for (auto& [peer, flow] : peers_) {
    std::erase_if(flow.held, [&](const Held& segment) { return segment.token == token; });
  }
}

void Flow::reset() {
  for (auto& [peer, flow] : peers_) {
    flow.ungranted_bytes = 0;
    flow.ungranted.clear();
    flow.held.clear();
    flow.asked.clear();
  }
}

}  // namespace pccl
