// Slices over the lanes of one link, as a peer chooses: in any order, several times, in part, over
// several lanes at once, of segments that are not there and of others than they were. Memory of a
// segment is a block of its own, and is freed as soon as its owner may free it.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../../cpp/transport/memory_stream.h"
#include "base/limits.h"
#include "input.h"
#include "targets.h"
#include "transport/crc32c.h"
#include "transport/framing.h"
#include "transport/link.h"
#include "transport/loop.h"
#include "transport/stream_lane.h"

namespace pccl::fuzz {
namespace {

constexpr std::size_t kLanes = 4;  // the first one is small

std::byte byte_of(std::uint64_t number, std::size_t slice) {
  return static_cast<std::byte>(4 * number + slice);
}

class Receiver : public LinkOwner, public DirectEvents {
 public:
  Receiver() : link(*this, {PeerId{1}, {}, {}}, 1) {}

  void cancel(MemoryToken token) {
    link.cancel(token);
    coming.erase(token);
  }
  DirectEvents& link_events() override { return *this; }
  void link_sent(const Link&, const Outgoing&) override {}
  void link_received(std::size_t, bool) override {}
  void link_lost(Link& ended, const std::string& reason) override {
    require(!reason.empty(), "a reason");
    require(!lost, "lost once");
    lost = true;
    ended.end();
    coming.clear();
  }
  void link_lacks(Link&) override {}
  void link_closed(Link&) override {}
  void link_up(PeerId) override {}
  void link_down(PeerId, const std::string&, Down) override {}
  void control_arrived(PeerId, std::span<const std::byte>) override {}
  void relay_arrived(PeerId, std::span<const std::byte>) override {}
  Placement segment_header(PeerId, const SegmentHeader& header) override {
    require(!lost, "nothing after the end");
    require(header.bytes <= kSegmentBytesMax, "a segment within its limit");
    if (header.op.step % 7 == 6) return {};  // of an operation that is over
    const MemoryToken token = ++tokens;
    coming[token] = std::make_unique<std::byte[]>(header.bytes);
    return {coming[token].get(), token, header.bytes};
  }
  void segment_arrived(PeerId, const SegmentHeader& header, const Placement& at) override {
    const auto found = coming.find(at.token);
    require(found != coming.end(), "once, and not after its end");
    require(at.to == found->second.get() && at.cookie == header.bytes, "where it was told");
    for (std::size_t i = 0; i < header.bytes; ++i) {
      require(at.to[i] == byte_of(header.op.step, i / kSliceBytes), "each slice in its place");
    }
    coming.erase(found);
  }
  void segment_sent(PeerId, std::uint64_t) override {}
  void routed_sent(PeerId, MemoryToken, std::uint64_t) override {}

  Link link;
  std::map<MemoryToken, std::unique_ptr<std::byte[]>> coming;
  MemoryToken tokens = 0;
  bool lost = false;
};

/// The other end of a lane.
struct Wire {
  std::unique_ptr<test::MemoryStream> stream;
  std::vector<std::byte> frame;  // that is being written
  std::size_t written = 0;
};

/// A slice of the segment with this number, or of one that is nearly it.
std::vector<std::byte> slice_of(std::uint64_t number, Input& in) {
  FrameHeader header;
  header.type = FrameType::slice;
  SegmentHeader& segment = header.segment;
  segment.kind = SegmentKind::collective;
  segment.op.step = number;
  const auto slices = static_cast<std::uint32_t>(1 + number % 3);
  segment.bytes = static_cast<std::uint32_t>((slices - 1) * kSliceBytes + 1 + 100 * (number % 5));
  const std::size_t place = in.below(slices);
  segment.slice.number = number;
  segment.slice.offset = static_cast<std::uint32_t>(place * kSliceBytes);
  switch (in.below(32)) {
    case 0:
      segment.slice.number = number + in.below(3);
      break;
    case 1:
      segment.bytes += static_cast<std::uint32_t>(in.below(2) * kSliceBytes);
      break;
    case 2:
      segment.slice.number = in.number<std::uint64_t>();
      break;
    default:
      break;
  }
  const std::uint32_t rest = segment.bytes - segment.slice.offset;
  segment.slice.bytes = std::min<std::uint32_t>(kSliceBytes, rest);
  header.payload_bytes = segment.slice.bytes;
  const std::vector<std::byte> payload(header.payload_bytes, byte_of(number, place));
  header.has_payload_crc = in.below(4) == 0;
  if (header.has_payload_crc) header.payload_crc = crc32c(0, payload);
  HeaderBytes bytes;
  const std::size_t size = encode_frame_header(header, bytes);
  std::vector<std::byte> frame(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
  frame.insert(frame.end(), payload.begin(), payload.end());
  return frame;
}

void write_part(Loop& loop, Wire& wire, std::size_t most, const Receiver& receiver) {
  const std::size_t end = std::min(wire.frame.size(), wire.written + most);
  while (wire.written < end && !receiver.lost && wire.stream->open()) {
    const auto moved =
        wire.stream->write(std::span(wire.frame).subspan(wire.written, end - wire.written));
    if (moved.outcome == Stream::Outcome::failed) return;
    wire.written += moved.bytes;
    loop.run_once(false);
  }
  if (wire.written == wire.frame.size()) wire.frame.clear();
}

}  // namespace

void slices(Bytes input) {
  Input in(input);
  Loop loop;
  Receiver receiver;
  std::array<Wire, kLanes> wires;
  for (Wire& wire : wires) {
    const bool small = &wire == wires.data();
    auto [here, there] = test::MemoryStream::pair(loop, 1U << 17, 1U << 20);
    wire.stream = std::move(there);
    const auto kind = small ? Lane::Kind::small : Lane::Kind::bulk;
    auto lane = std::make_unique<StreamLane>(loop, receiver.link, kind, std::move(here), false);
    small ? receiver.link.attach(std::move(lane)) : receiver.link.join(std::move(lane));
  }
  receiver.link.state = Link::State::up;
  receiver.link.start();
  std::uint64_t first = 1;  // of the segments of which slices come
  std::uint64_t now_ms = 0;
  while (!in.ended() && !receiver.lost) {
    Wire& wire = wires[in.below(kLanes)];
    const std::size_t what = in.below(16);
    if (what == 0) {
      first += in.below(4);
    } else if (what == 1) {
      receiver.cancel(1 + in.below(receiver.tokens + 1));
    } else if (what == 2 && in.below(4) == 0) {
      wire.stream->close();
      loop.run_once(false);
    } else if (what == 3) {
      receiver.link.mend(now_ms += in.below(4000));
    } else if (wire.frame.empty()) {
      wire.frame = slice_of(first + in.below(4), in);
      wire.written = 0;
      write_part(loop, wire, what < 10 ? wire.frame.size() : 96 + in.below(64) * 1024, receiver);
    } else {
      write_part(loop, wire, what < 10 ? wire.frame.size() : in.below(64) * 1024, receiver);
    }
  }
  for (Wire& wire : wires) wire.stream->close();
  for (int i = 0; i < 1000 && !receiver.lost; ++i) loop.run_once(false);
  require(receiver.lost, "a link ends with its lanes");
}

}  // namespace pccl::fuzz
