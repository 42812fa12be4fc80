// Mutated streams of frames into a real lane over a socket pair: it never crashes, and every
// control message and segment that it delivers is one that was sent, whole, or the lane ends with a
// reason. Openings, hellos and answers of the handshake get the same bytes.
#include <sys/socket.h>

#include <array>
#include <set>
#include <string>

#include "base/limits.h"
#include "fuzz.h"
#include "transport/bytes.h"
#include "transport/crc32c.h"
#include "transport/framing.h"
#include "transport/handshake.h"
#include "transport/loop.h"
#include "transport/relay_message.h"
#include "transport/stream_lane.h"

namespace pccl {
namespace {

/// Counts what a lane delivers and gives every second segment a place.
class Sink : public LaneOwner {
 public:
  explicit Sink(Random& random) : random_(random), memory_(kSegmentBytesMax) {}
  void lane_message(FrameType, std::span<const std::byte> payload) override { check(payload); }
  Placement lane_segment_header(const SegmentHeader&) override {
    if (random_.below(3) == 0) return {};
    return {memory_.data(), 1, 0};
  }
  void lane_segment(const SegmentHeader& header, const Placement& at) override {
    if (at.to != nullptr) check({at.to, header.bytes});
  }
  void lane_received(std::size_t, bool) override {}
  void lane_sent(const Outgoing&) override {}
  void lane_joined(Lane&) override {}
  std::optional<Outgoing> lane_next(const Lane&) override { return std::nullopt; }
  void lane_over(Lane&, const std::string& reason, bool broken) override {
    if (broken) over = true;
    said = !reason.empty();
  }
  void lane_lost(Lane& lane, const std::string& reason, Leftover) override {
    lane_over(lane, reason, true);
  }
  void lane_closed(Lane&) override {}

  std::set<std::string> sent;
  bool wrong = false;
  bool over = false;
  bool said = true;

 private:
  void check(std::span<const std::byte> payload) {
    if (!sent.contains({reinterpret_cast<const char*>(payload.data()), payload.size()}))
      wrong = true;
  }
  Random& random_;
  std::vector<std::byte> memory_;
};

std::vector<std::byte> random_frames(Random& random, Sink& sink) {
  std::vector<std::byte> stream;
  for (std::uint64_t n = 1 + random.below(6); n > 0; --n) {
    FrameHeader header;
    constexpr std::array kTypes = {FrameType::control, FrameType::segment, FrameType::relay,
                                   FrameType::routed,  FrameType::slice,   FrameType::joined,
                                   FrameType::goodbye};
    header.type = kTypes[random.below(random.below(4) == 0 ? 7 : 6)];
    std::vector<std::byte> payload;
    if (header.type != FrameType::goodbye && header.type != FrameType::joined) {
      const std::size_t least = header.type == FrameType::relay ? kRelayHeadBytes : 1;
      payload.resize(least + random.below(random.below(8) == 0 ? 20000 : 60));
    }
    for (auto& byte : payload) byte = static_cast<std::byte>(random.next());
    header.payload_bytes = static_cast<std::uint32_t>(payload.size());
    header.has_payload_crc = true;
    header.payload_crc = crc32c(0, payload);
    header.segment.bytes = header.payload_bytes;
    if (header.type == FrameType::slice) {
      header.segment.slice = {random.below(4), 0, header.payload_bytes};
    }
    header.segment.kind = static_cast<SegmentKind>(1 + random.below(5));
    header.segment.descriptor.quantisation =
        static_cast<Quantisation>(random.below(static_cast<std::uint64_t>(kQuantisationLast) + 1));
    header.segment.offset = random.next();
    header.segment.op.index = random.next();
    header.segment.route = {PeerId{1 + random.below(9)}, PeerId{1 + random.below(9)}, 3,
                            random.next()};
    for (auto& byte : header.segment.route.fields) byte = static_cast<std::byte>(random.next());
    HeaderBytes bytes;
    const std::size_t size = encode_frame_header(header, bytes);
    stream.insert(stream.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    stream.insert(stream.end(), payload.begin(), payload.end());
    sink.sent.insert({reinterpret_cast<const char*>(payload.data()), payload.size()});
    if (header.type == FrameType::goodbye) break;
  }
  return stream;
}

void one(std::uint64_t seed) {
  Random random(seed);
  Loop loop;
  Sink sink(random);
  int fds[2];
  fuzz::require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0, "socketpair",
                seed);
  Socket feeder(loop, fds[1]);
  const auto kind = random.below(2) == 0 ? Lane::Kind::small : Lane::Kind::bulk;
  StreamLane lane(loop, sink, kind, std::make_unique<SocketStream>(loop, Socket(loop, fds[0])),
                  true);
  lane.start();
  std::vector<std::byte> stream = random_frames(random, sink);
  if (random.below(5) != 0) fuzz::mutate(stream, random);
  std::size_t at = 0;
  while (at < stream.size() && lane.open()) {
    const std::size_t piece =
        std::min(1 + random.below(random.below(2) == 0 ? 100 : 30000), stream.size() - at);
    const auto sent = ::send(feeder.fd(), stream.data() + at, piece, MSG_NOSIGNAL);
    if (sent > 0) at += static_cast<std::size_t>(sent);
    if (sent < 0 && errno == EPIPE) break;
    loop.run_once(false);
    if (random.below(50) == 0) (void)lane.cancel(1);
  }
  feeder.reset();
  for (int i = 0; i < 100 && lane.open(); ++i) loop.run_once(false);
  fuzz::require(!lane.open(), "the lane did not end with its connection", seed);
  fuzz::require(!sink.wrong, "it delivered what was never sent", seed);
  fuzz::require(sink.said, "it ended without a reason", seed);

  // Headers of any length, also shorter than their type demands: as a channel sees their first
  // bytes.
  std::vector<std::byte> some(
      stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(random.below(
                                           std::min(stream.size(), kRoutedHeaderBytes) + 1)));
  if (some.size() > 4 && random.below(2) == 0) {
    some[4] = static_cast<std::byte>(random.below(8));
    BytesOut{std::span(some)}.number(crc32c(0, std::span<const std::byte>(some).subspan(4)));
  }
  (void)frame_header_size(some);
  (void)decode_frame_header(some, kControlBytesMax);

  // The parsers of the handshake take spans of fixed size.
  stream.resize(kLaneHelloBytes);
  const auto bytes = std::span<const std::byte>(stream);
  if (random.below(2) == 0) {
    for (std::size_t i = 0; i < kMagic.size(); ++i) stream[i] = static_cast<std::byte>(kMagic[i]);
  }
  if (const auto opening = decode_opening(bytes.first(kOpeningBytes))) {
    fuzz::require(may_be_opening(bytes.first(kOpeningBytes)), "opening", seed);
  }
  if (const auto hello = decode_lane_hello(bytes.first(kLaneHelloBytes))) {
    const auto again = encode_lane_hello(hello.value());
    fuzz::require(std::equal(again.begin(), again.end(), stream.begin()), "lane hello", seed);
  }
  if (const auto offer = decode_lane_offer(bytes.first(kLaneOfferBytes))) {
    const auto again = encode_lane_offer(offer.value());
    fuzz::require(std::equal(again.begin(), again.end(), stream.begin()), "lane offer", seed);
  }
  (void)decode_lane_answer(bytes.first(kLaneAnswerBytes));
  (void)decode_relay(bytes);
}

}  // namespace
}  // namespace pccl

int main(int argc, char** argv) { return pccl::fuzz::run(argc, argv, 2000, pccl::one); }
