#include "engine/flow.h"

#include <utility>
#include <vector>

#include "wire/codec.h"

namespace pccl {

Flow::~Flow() {
  for (auto& [peer, flow] : peers_) {
    for (const auto& [op, bytes] : flow.ungranted)
      context_.windows.of(peer).ungranted_bytes -= bytes;
  }
}

bool Flow::may_leave(PeerId peer, const PeerFlow& flow, const SegmentHeader& header) {
  if (header.op < flow.granted) return true;
  return context_.windows.of(peer).ungranted_bytes + kept_cost(header.bytes) <= kUngrantedBytesMax;
}

void Flow::pass(PeerId peer, PeerFlow& flow, const Held& segment) {
  if (!(segment.header.op < flow.granted)) {
    const std::uint64_t cost = kept_cost(segment.header.bytes);
    flow.ungranted[segment.header.op] += cost;
    context_.windows.of(peer).ungranted_bytes += cost;
  }
  context_.links.send_segment(peer, segment.header, segment.data, segment.token,
                              EngineContext::cookie(segment.token, segment.index));
}

void Flow::send(PeerId peer, const SegmentHeader& header, const std::byte* data, MemoryToken token,
                std::uint32_t index) {
  PeerFlow& flow = peers_[peer];
  const Held segment{header, data, token, index};
  if (may_leave(peer, flow, header)) {
    pass(peer, flow, segment);
    return;
  }
  flow.held.push_back(segment);
  if (flow.asked.insert(header.op).second) {
    context_.links.send_control(peer, encode(PeerToPeer{Want{group_, epoch_, header.op}}));
  }
}

/// The window has room again for what left for operations before `issued`.
void Flow::give_back(PeerId peer, PeerFlow& flow, OpKey issued) {
  while (!flow.ungranted.empty() && flow.ungranted.begin()->first < issued) {
    context_.windows.of(peer).ungranted_bytes -= flow.ungranted.begin()->second;
    flow.ungranted.erase(flow.ungranted.begin());
  }
}

void Flow::granted(PeerId peer, OpKey issued) {
  PeerFlow& flow = peers_[peer];
  if (issued <= flow.granted) return;
  flow.granted = issued;
  give_back(peer, flow, issued);
  flow.asked.erase(flow.asked.begin(), flow.asked.lower_bound(issued));
  std::deque<Held> still;
  for (const Held& segment : std::exchange(flow.held, {})) {
    if (may_leave(peer, flow, segment.header)) {
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
  context_.links.send_control(peer, encode(PeerToPeer{Grant{group_, epoch_, issued}}));
}

void Flow::wanted(PeerId peer, OpKey op, OpKey issued) {
  PeerFlow& flow = peers_[peer];
  if (op < issued) {
    tell(peer, flow, issued);
    return;
  }
  auto kept = context_.keep(peer, kKeptMessageBytes);
  if (!kept) return;
  flow.wants.insert_or_assign(op, std::move(*kept));
  any_wants_ = true;
}

void Flow::issued(OpKey issued) {
  if (!any_wants_) return;
  any_wants_ = false;
  for (auto& [peer, flow] : peers_) {
    if (!flow.wants.empty() && flow.wants.begin()->first < issued) tell(peer, flow, issued);
    any_wants_ = any_wants_ || !flow.wants.empty();
  }
}

void Flow::received(PeerId peer, std::uint32_t bytes, OpKey issued) {
  PeerFlow& flow = peers_[peer];
  flow.received_bytes += bytes;
  if (flow.received_bytes >= kUngrantedBytesMax / 4) tell(peer, flow, issued);
}

void Flow::close() {
  for (auto& [peer, flow] : peers_) {
    if (!flow.wants.empty()) tell(peer, flow, kGroupClosed);
    if (flow.ungranted.empty()) continue;
    Windows::Rest& rest = context_.windows.left_behind(peer, group_);
    rest.epoch = epoch_;
    rest.ungranted = std::exchange(flow.ungranted, {});
  }
}

void send_questions(Links& links, PeerId peer, const std::vector<Want>& wants) {
  for (const Want& want : wants) links.send_control(peer, encode(PeerToPeer{want}));
}

void Flow::cancel(MemoryToken token) {
  for (auto& [peer, flow] : peers_) {
    std::erase_if(flow.held, [&](const Held& segment) { return segment.token == token; });
  }
}

}  // namespace pccl
