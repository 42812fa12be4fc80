// A lane that gets frames whose fields the input chooses, with right checksums, and bytes that are
// no frames. It writes only where it was told to, and ends with a reason when its stream ends. The
// parsers of what comes before the first frame, and of relay messages, get the same bytes.
#include <array>
#include <memory>
#include <optional>

#include "../../cpp/transport/memory_stream.h"
#include "base/limits.h"
#include "input.h"
#include "targets.h"
#include "transport/bytes.h"
#include "transport/crc32c.h"
#include "transport/entrance.h"
#include "transport/framing.h"
#include "transport/handshake.h"
#include "transport/loop.h"
#include "transport/relay_message.h"
#include "transport/stream_lane.h"

namespace pccl::fuzz {
namespace {

class Sink : public LaneOwner {
 public:
  void lane_message(FrameType, std::span<const std::byte> payload) override {
    for (const std::byte byte : payload) sum += static_cast<std::uint8_t>(byte);
  }
  Placement lane_segment_header(const SegmentHeader& header) override {
    require(header.bytes <= kSegmentBytesMax, "a segment within its limit");
    if (header.offset % 3 == 0) return {};
    memory = std::make_unique<std::byte[]>(header.bytes);  // so large and no larger
    return {memory.get(), 1, header.offset};
  }
  void lane_segment(const SegmentHeader& header, const Placement& at) override {
    if (at.to == nullptr && header.slice.is_one()) return;
    require(at.to == memory.get(), "where it was told");
    require(at.cookie == header.offset, "the cookie of its header");
    lane_message(FrameType::segment,
                 {at.to, header.slice.is_one() ? header.slice.bytes : header.bytes});
  }
  void lane_received(std::size_t, bool) override {}
  void lane_sent(const Outgoing&) override {}
  void lane_joined(Lane&) override {}
  std::optional<Outgoing> lane_next(const Lane&) override { return std::nullopt; }
  void lane_over(Lane&, const std::string& reason, bool) override {
    require(!reason.empty(), "a reason");
  }
  void lane_lost(Lane&, const std::string& reason, Leftover) override {
    require(!reason.empty(), "a reason");
  }
  void lane_closed(Lane&) override {}

  std::unique_ptr<std::byte[]> memory;
  std::uint64_t sum = 0;
};

/// A frame that begins with bytes of the input and has right checksums, or bytes of the input.
std::vector<std::byte> next_piece(Input& in) {
  const std::uint8_t what = in.byte();
  if (what % 8 == 7) {
    const auto raw = in.take(in.below(300));
    return {raw.begin(), raw.end()};
  }
  const auto type = static_cast<FrameType>(1 + what % 7);
  std::vector<std::byte> frame(header_bytes(type));
  const auto fields = in.take(frame.size() - 4);
  std::copy(fields.begin(), fields.end(), frame.begin() + 4);
  const auto payload = in.take((what & 64) != 0 ? in.below(2000) : in.below(64));
  if ((what & 128) == 0) {  // as its sender would write it
    const bool has_crc = (what & 32) != 0;
    BytesOut{std::span(frame).subspan(4)}
        .number(static_cast<std::uint8_t>(type))
        .number(std::uint8_t{has_crc})
        .number(std::uint16_t{0})
        .number(static_cast<std::uint32_t>(payload.size()))
        .number(has_crc ? crc32c(0, payload) : 0);
  }
  BytesOut{std::span(frame)}.number(crc32c(0, std::span<const std::byte>(frame).subspan(4)));
  frame.insert(frame.end(), payload.begin(), payload.end());
  return frame;
}

void parse_all(Bytes bytes) {
  const auto first = [&](std::size_t size) { return bytes.first(std::min(size, bytes.size())); };
  const auto head = first(kRoutedHeaderBytes);
  if (const auto size = frame_header_size(head); size && size.value() > 0) {
    (void)decode_frame_header(first(size.value()), kControlBytesMax);
  }
  (void)decode_frame_header(head, kControlBytesMax);
  (void)may_be_opening(first(kOpeningBytes));
  if (const auto message = decode_relay(bytes)) {
    const auto again = encode_relay(message.value());
    require(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()), "relay message");
    if (message.value().kind == RelayKind::open) {
      const auto rest = message.value().rest;
      const auto said = encode_relay_opening(decode_relay_opening(rest));
      require(std::equal(said.begin(), said.end(), rest.begin(), rest.end()), "relay opening");
    }
  }
  if (bytes.size() >= kOpeningBytes) {
    if (const auto opening = decode_opening(first(kOpeningBytes))) {
      require(may_be_opening(first(kOpeningBytes)), "an opening may be one");
    }
  }
  const auto same = [&](const auto& decoded, const auto& encode, std::size_t size) {
    if (!decoded) return;
    const auto again = encode(decoded.value());
    require(std::equal(again.begin(), again.end(), first(size).begin()), "the same bytes");
  };
  if (bytes.size() >= kLaneHelloBytes) {
    same(decode_lane_hello(first(kLaneHelloBytes)), encode_lane_hello, kLaneHelloBytes);
  }
  if (bytes.size() >= kLaneOfferBytes) {
    same(decode_lane_offer(first(kLaneOfferBytes)), encode_lane_offer, kLaneOfferBytes);
    (void)decode_lane_answer(first(kLaneAnswerBytes));
  }
  if (bytes.size() >= kMasterOfferBytes) {
    same(decode_master_offer(first(kMasterOfferBytes)), encode_master_offer, kMasterOfferBytes);
  }
}

}  // namespace

void lane(Bytes input) {
  Input in(input);
  const std::uint8_t how = in.byte();
  if (how % 4 == 0) return parse_all(in.rest());
  Loop loop;
  Sink sink;
  const std::size_t piece = (how & 4) != 0 ? 1 + in.below(64) : 1U << 16;
  auto [here, there] = test::MemoryStream::pair(loop, piece, 1U << 20);
  const auto kind = (how & 8) != 0 ? Lane::Kind::small : Lane::Kind::bulk;
  StreamLane lane(loop, sink, kind, std::move(here), (how & 16) != 0);
  lane.start();
  while (!in.ended() && lane.open()) {
    const std::vector<std::byte> bytes = next_piece(in);
    for (std::size_t at = 0; at < bytes.size() && lane.open();) {
      const auto moved = there->write(std::span<const std::byte>(bytes).subspan(at));
      if (moved.outcome == Stream::Outcome::failed) break;
      at += moved.bytes;
      loop.run_once(false);
    }
    if (in.below(16) == 1) (void)lane.cancel(1);
  }
  there->close();
  for (int i = 0; i < 100000 && lane.open(); ++i) loop.run_once(false);
  require(!lane.open(), "a lane ends with its stream");
}

}  // namespace pccl::fuzz
