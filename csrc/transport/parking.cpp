#include "transport/parking.h"

#include <algorithm>
#include <array>

#include "base/limits.h"
#include "transport/address.h"
#include "transport/framing.h"
#include "transport/sys.h"

namespace pccl {
namespace {

constexpr std::uint64_t kSweepMs = 200;

enum class FirstFrame { nothing, goodbye, data, cut_off };

/// The kind of the first frame of an unread connection, after the `joined` frame of a lane that
/// joins.
FirstFrame look(Stream& stream) {
  std::array<std::byte, 2 * kFrameHeaderBytes> first{};
  const Stream::Moved got = stream.peek(first);
  if (got.outcome == Stream::Outcome::later) return FirstFrame::nothing;
  if (got.outcome != Stream::Outcome::moved) return FirstFrame::cut_off;
  auto rest = std::span<const std::byte>(first).first(got.bytes);
  while (rest.size() >= kFrameHeaderBytes) {
    const auto frame = decode_frame_header(rest.first(kFrameHeaderBytes), kPeerMessageBytesMax);
    if (frame.ok() && frame.value().type == FrameType::goodbye) return FirstFrame::goodbye;
    if (!frame.ok() || frame.value().type != FrameType::joined) return FirstFrame::data;
    rest = rest.subspan(kFrameHeaderBytes);
  }
  return rest.empty() ? FirstFrame::nothing : FirstFrame::data;
}

/// A lane that joins may vanish; the first one is the link.
bool is_cut_off(const Parking::Parked& link) {
  return look(*link.lanes.front()) == FirstFrame::cut_off;
}

/// Nothing has come over it, and nothing will.
bool is_over(const Parking::Parked& link) {
  return is_cut_off(link) ||
         std::all_of(link.lanes.begin(), link.lanes.end(), [](const auto& lane) {
           const FirstFrame seen = look(*lane);
           return seen == FirstFrame::goodbye || seen == FirstFrame::cut_off;
         });
}

}  // namespace

Parking::Parking(Loop& loop, std::size_t lanes_of_link)
    : loop_(loop),
      lanes_of_link_(std::min(lanes_of_link, kLanesMax)),
      lanes_max_(descriptors_max() / 2),
      refusals_(loop) {}

void Parking::add(const LaneHello& hello, std::unique_ptr<Stream> lane) {
  Parked& parked = links_[peer_of(hello.dialer)];
  parked = {hello.dialer, hello.link, {}, ++order_, lane->remote_host()};
  parked.lanes.push_back(std::move(lane));
  if (!sweep_) sweep_ = loop_.timer(kSweepMs, kSweepMs, [this] { sweep(); });
  make_room();
}

void Parking::make_room() {
  std::map<std::string, std::size_t> lanes_of;
  std::size_t lanes = 0;
  const auto too_many = [&] { return links_.size() > kMembersMax || lanes > lanes_max_; };
  for (const auto& [peer, link] : links_) lanes += link.lanes.size();
  if (!too_many()) return;
  for (const auto& [peer, link] : links_) lanes_of[network_of(link.host)] += link.lanes.size();
  while (too_many()) {
    const auto most =
        std::max_element(lanes_of.begin(), lanes_of.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    auto oldest = links_.end();
    for (auto link = links_.begin(); link != links_.end(); ++link) {
      if (network_of(link->second.host) != most->first) continue;
      if (oldest == links_.end() || link->second.order < oldest->second.order) oldest = link;
    }
    const std::size_t freed = oldest->second.lanes.size();
    lanes -= freed;
    most->second -= freed;
    refusals_.refused(oldest->second.host,
                      "more links than this process keeps that it has not asked for");
    links_.erase(oldest);
  }
}

bool Parking::takes_lane(const LaneHello& hello) const {
  const auto found = links_.find(peer_of(hello.dialer));
  return found != links_.end() && found->second.key == hello.dialer &&
         found->second.link == hello.link && found->second.lanes.size() < lanes_of_link_;
}

void Parking::join(const LaneHello& hello, std::unique_ptr<Stream> lane) {
  links_.at(peer_of(hello.dialer)).lanes.push_back(std::move(lane));
  make_room();
}

std::optional<Parking::Parked> Parking::take(const Handle& peer) {
  auto node = links_.extract(peer.peer);
  if (node.empty() || node.mapped().key != peer.key || is_cut_off(node.mapped())) {
    return std::nullopt;
  }
  return std::move(node.mapped());
}

void Parking::sweep() {
  std::erase_if(links_, [](const auto& entry) { return is_over(entry.second); });
  if (links_.empty()) sweep_.reset();
}

}  // namespace pccl
