#include "transport/framing.h"

#include <gtest/gtest.h>

#include <set>

#include "base/limits.h"
#include "base/protocol.h"
#include "base/random.h"
#include "support.h"
#include "transport/bytes.h"
#include "transport/crc32c.h"
#include "transport/handshake.h"

namespace pccl {
namespace {

TEST(Crc32c, known_values) {
  EXPECT_EQ(crc32c(0, test::bytes_of("123456789")),
            0xE3069283U);  // the check value of its catalogue
  EXPECT_EQ(crc32c(0, std::vector<std::byte>(32, std::byte{0})), 0x8A9136AAU);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(0, std::vector<std::byte>(32, std::byte{0xFF})), 0x62A8AB43U);
  EXPECT_EQ(crc32c(0, {}), 0U);
}

TEST(Crc32c, instruction_and_table_agree_on_every_length_and_alignment_also_in_pieces) {
  Random random(3);
  std::vector<std::byte> data(20000);
  for (auto& byte : data) byte = static_cast<std::byte>(random.next());
  for (int i = 0; i < 300; ++i) {
    const std::size_t from = random.below(64);
    const std::size_t size = random.below(data.size() - 64);
    const auto part = std::span<const std::byte>(data).subspan(from, size);
    const std::uint32_t whole = crc32c(0, part);
    EXPECT_EQ(whole, crc32c_table(0, part));
    const std::size_t cut = random.below(size + 1);
    EXPECT_EQ(whole, crc32c(crc32c(0, part.first(cut)), part.subspan(cut)));
  }
}

FrameHeader some_segment() {
  FrameHeader header;
  header.type = FrameType::segment;
  header.has_payload_crc = true;
  header.payload_bytes = 70000;
  header.payload_crc = 0x01020304;
  header.segment.group.value = 0x1111111111111111;
  header.segment.epoch.value = 0x2222222222222222;
  header.segment.op = {3, 4};
  header.segment.channel = 5;
  header.segment.offset = 6;
  header.segment.bytes = 70000;
  header.segment.descriptor = {OpKind::reduce_scatter, ReduceOp::avg, DType::bf16, -1, 1ULL << 40,
                               Quantisation::f8_e5m2};
  return header;
}

std::span<const std::byte> encoded(const FrameHeader& header, HeaderBytes& bytes) {
  return std::span<const std::byte>(bytes).first(encode_frame_header(header, bytes));
}

TEST(Framing, headers_come_back_as_they_were) {
  HeaderBytes bytes;
  const FrameHeader segment = some_segment();
  auto in = encoded(segment, bytes);
  EXPECT_EQ(in.size(), kSegmentHeaderBytes);
  const auto back = decode_frame_header(in, kControlBytesMax);
  ASSERT_TRUE(back.ok()) << back.error().text;
  EXPECT_EQ(back.value().segment.descriptor, segment.segment.descriptor);
  EXPECT_EQ(back.value().segment.op, segment.segment.op);
  EXPECT_EQ(back.value().segment.bytes, 70000U);
  EXPECT_EQ(back.value().payload_crc, 0x01020304U);

  FrameHeader control;
  control.payload_bytes = 17;
  in = encoded(control, bytes);
  EXPECT_EQ(in.size(), kFrameHeaderBytes);
  EXPECT_EQ(decode_frame_header(in, kControlBytesMax).value().payload_bytes, 17U);
  EXPECT_FALSE(decode_frame_header(in, 16).ok());
}

TEST(Framing,
     every_kind_of_segment_comes_back_and_the_descriptor_is_a_label_that_nobody_reads_here) {
  for (const SegmentKind kind : {SegmentKind::collective, SegmentKind::message, SegmentKind::eager,
                                 SegmentKind::state, SegmentKind::measure}) {
    HeaderBytes bytes;
    FrameHeader header = some_segment();
    header.segment.kind = kind;
    header.segment.descriptor.kind = static_cast<OpKind>(200);
    header.segment.descriptor.reduce = static_cast<ReduceOp>(201);
    header.segment.descriptor.dtype = static_cast<DType>(202);
    const auto back = decode_frame_header(encoded(header, bytes), kControlBytesMax);
    ASSERT_TRUE(back.ok()) << back.error().text;
    EXPECT_EQ(back.value().segment.kind, kind);
    EXPECT_EQ(back.value().segment.descriptor, header.segment.descriptor);
  }
}

TEST(Framing, a_header_that_is_shorter_or_longer_than_its_type_demands_is_refused_unread) {
  for (const FrameType type :
       {FrameType::control, FrameType::segment, FrameType::goodbye, FrameType::relay,
        FrameType::routed, FrameType::slice, FrameType::reference}) {
    HeaderBytes bytes;
    FrameHeader header = some_segment();
    header.type = type;
    header.segment.route = {PeerId{11}, PeerId{12}, 13};
    const std::size_t whole = encode_frame_header(header, bytes);
    for (std::size_t size = 0; size <= bytes.size(); ++size) {
      if (size == whole) continue;
      // Memory of its own, with a checksum that fits: reading past its end is seen.
      std::vector<std::byte> some(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
      if (size >= 4) {
        BytesOut{std::span(some)}.number(crc32c(0, std::span<const std::byte>(some).subspan(4)));
      }
      const auto back = decode_frame_header(some, kControlBytesMax);
      ASSERT_FALSE(back.ok()) << size;
      EXPECT_EQ(back.error().code, ErrorCode::malformed);
    }
  }
}

FrameHeader some_slice(std::uint32_t offset, std::uint32_t bytes, std::uint32_t whole) {
  FrameHeader header = some_segment();
  header.type = FrameType::slice;
  header.segment.bytes = whole;
  header.segment.slice = {17, offset, bytes};
  header.payload_bytes = bytes;
  return header;
}

FrameHeader some_reference(AreaPlace place, std::uint32_t bytes, std::uint32_t payload = 0) {
  FrameHeader header = some_segment();
  header.type = FrameType::reference;
  header.has_payload_crc = false;
  header.payload_crc = 0;
  header.payload_bytes = payload;
  header.segment.bytes = bytes;
  header.segment.area = place;
  return header;
}

TEST(Framing, a_reference_names_a_slot_and_carries_nothing) {
  const auto back = [](const FrameHeader& header) {
    HeaderBytes bytes;
    return decode_frame_header(encoded(header, bytes), kControlBytesMax);
  };
  const AreaPlace last{kAreaSlots - 1, ~0ULL};
  const auto whole = back(some_reference(last, kAreaSlotBytes));
  ASSERT_TRUE(whole.ok()) << whole.error().text;
  EXPECT_EQ(whole.value().segment.area, last);
  EXPECT_EQ(whole.value().segment.bytes, kAreaSlotBytes);
  EXPECT_EQ(whole.value().payload_bytes, 0U);
  EXPECT_EQ(whole.value().segment.descriptor, some_segment().segment.descriptor);
  EXPECT_TRUE(back(some_reference({0, 1}, 1)).ok());
  FrameHeader checked = some_reference({0, 1}, 1);
  checked.has_payload_crc = true;
  for (const FrameHeader& wrong :
       {some_reference({kAreaSlots, 1}, 1), some_reference({0, 0}, 1), some_reference({0, 1}, 0),
        some_reference({0, 1}, kAreaSlotBytes + 1), some_reference({0, 1}, 1, 1), checked}) {
    EXPECT_FALSE(back(wrong).ok());
  }
}

TEST(Framing, a_slice_lies_on_the_grid_of_its_segment) {
  constexpr std::uint32_t k = kSliceBytes;
  const auto back = [](const FrameHeader& header) {
    HeaderBytes bytes;
    const auto in = encoded(header, bytes);
    EXPECT_EQ(in.size(), kSliceHeaderBytes);
    return decode_frame_header(in, kControlBytesMax);
  };
  const auto whole = back(some_slice(2 * k, 5, 2 * k + 5));
  ASSERT_TRUE(whole.ok()) << whole.error().text;
  EXPECT_EQ(whole.value().segment.slice, (Slice{17, 2 * k, 5}));
  EXPECT_EQ(whole.value().segment.bytes, 2 * k + 5);
  EXPECT_EQ(whole.value().segment.op, some_segment().segment.op);
  EXPECT_TRUE(back(some_slice(0, k, kSegmentBytesMax)).ok());
  EXPECT_TRUE(back(some_slice(kSegmentBytesMax - k, k, kSegmentBytesMax)).ok());
  for (const FrameHeader& wrong :
       {some_slice(1, k, 4 * k), some_slice(0, k - 1, 4 * k), some_slice(4 * k, k, 4 * k),
        some_slice(3 * k, k, 3 * k + 1), some_slice(0, 0, 0), some_slice(0, 0, k),
        some_slice(0xFFFF0000, k, 4 * k), some_slice(0, k, kSegmentBytesMax + 1),
        some_slice(kSegmentBytesMax, k, kSegmentBytesMax + k), some_slice(0, 2 * k, 4 * k)}) {
    EXPECT_FALSE(back(wrong).ok()) << wrong.segment.slice.offset << " " << wrong.payload_bytes;
  }
}

TEST(Framing, a_routed_segment_says_from_whom_to_whom_and_a_relay_frame_holds_its_head) {
  HeaderBytes bytes;
  FrameHeader header = some_segment();
  header.type = FrameType::routed;
  header.segment.route = {PeerId{11}, PeerId{12}, 13, 14};
  header.segment.route.fields.fill(std::byte{15});  // whatever they are: they are sealed
  header.segment.route.tag.fill(std::byte{16});
  const auto in = encoded(header, bytes);
  EXPECT_EQ(in.size(), kRoutedHeaderBytes);
  const auto back = decode_frame_header(in, kControlBytesMax);
  ASSERT_TRUE(back.ok()) << back.error().text;
  EXPECT_EQ(back.value().segment.route, header.segment.route);
  EXPECT_EQ(back.value().segment.bytes, header.payload_bytes);
  EXPECT_EQ(back.value().segment.descriptor, OpDescriptor{});
  header.segment.route.to = PeerId{};
  EXPECT_FALSE(decode_frame_header(encoded(header, bytes), kControlBytesMax).ok());

  header = {};
  header.type = FrameType::relay;
  header.payload_bytes = kRelayHeadBytes;
  EXPECT_TRUE(decode_frame_header(encoded(header, bytes), kControlBytesMax).ok());
  header.payload_bytes = kRelayHeadBytes - 1;
  EXPECT_FALSE(decode_frame_header(encoded(header, bytes), kControlBytesMax).ok());
  header.payload_bytes = kRelayHeadBytes + 16 + kSealTagBytes;
  EXPECT_TRUE(decode_frame_header(encoded(header, bytes), 16).ok());
  header.payload_bytes += 1;
  EXPECT_FALSE(decode_frame_header(encoded(header, bytes), 16).ok());
}

TEST(Framing, the_fields_of_a_segment_come_back_as_they_were_and_nonsense_does_not) {
  const SegmentHeader segment = some_segment().segment;
  const SegmentFields fields = encode_segment_fields(segment);
  const auto back = decode_segment_fields(fields);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(encode_segment_fields(back.value()), fields);
  EXPECT_EQ(back.value().descriptor, segment.descriptor);
  EXPECT_EQ(back.value().offset, segment.offset);
  for (const std::size_t at : {59, 60, 61, 63}) {  // kinds of segment and quantisation; zeros
    SegmentFields wrong = fields;
    wrong[at] = std::byte{99};
    EXPECT_FALSE(decode_segment_fields(wrong).ok()) << at;
  }
}

TEST(Framing, every_flipped_bit_of_a_header_is_seen) {
  HeaderBytes bytes;
  FrameHeader routed = some_segment();
  routed.type = FrameType::routed;
  routed.segment.route = {PeerId{11}, PeerId{12}, 13};
  const auto in = encoded(routed, bytes);
  for (std::size_t bit = 0; bit < in.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    const auto size = frame_header_size(in);
    if (size.ok() && size.value() == in.size()) {
      EXPECT_FALSE(decode_frame_header(in, kControlBytesMax).ok()) << bit;
    }
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  }
  EXPECT_TRUE(decode_frame_header(in, kControlBytesMax).ok());
}

TEST(Framing,
     sizes_over_a_limit_and_numbers_that_name_nothing_are_refused_also_with_a_right_checksum) {
  HeaderBytes bytes;
  FrameHeader header = some_segment();
  header.payload_bytes = kSegmentBytesMax + 1;
  EXPECT_FALSE(decode_frame_header(encoded(header, bytes), kControlBytesMax).ok());
  for (const unsigned kind : {0U, 6U, 200U}) {
    header = some_segment();
    header.segment.kind = static_cast<SegmentKind>(kind);
    EXPECT_FALSE(decode_frame_header(encoded(header, bytes), kControlBytesMax).ok()) << kind;
  }
  header = some_segment();
  header.segment.descriptor.quantisation = kQuantisationLast;
  EXPECT_TRUE(decode_frame_header(encoded(header, bytes), kControlBytesMax).ok());
  for (const unsigned unknown : {static_cast<unsigned>(kQuantisationLast) + 1, 255U}) {
    header.segment.descriptor.quantisation = static_cast<Quantisation>(unknown);
    const auto back = decode_frame_header(encoded(header, bytes), kControlBytesMax);
    ASSERT_FALSE(back.ok()) << unknown;
    EXPECT_EQ(back.error().code, ErrorCode::malformed);
  }
  header = {};
  header.payload_bytes = 0;
  EXPECT_FALSE(decode_frame_header(encoded(header, bytes), kControlBytesMax).ok());
  header.type = FrameType::goodbye;
  EXPECT_TRUE(decode_frame_header(encoded(header, bytes), kControlBytesMax).ok());
  header.payload_bytes = 1;
  EXPECT_FALSE(decode_frame_header(encoded(header, bytes), kControlBytesMax).ok());
  bytes[4] = std::byte{9};
  EXPECT_FALSE(frame_header_size(bytes).ok());
}

TEST(Handshake, openings_come_back_and_all_else_is_refused) {
  const auto bytes = encode_opening({kProtocolVersion, Purpose::lane});
  EXPECT_EQ(decode_opening(bytes).value(), (Opening{kProtocolVersion, Purpose::lane}));
  for (std::size_t i = 0; i <= bytes.size(); ++i)
    EXPECT_TRUE(may_be_opening(std::span(bytes).first(i)));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto wrong = bytes;
    wrong[i] ^= std::byte{0x40};
    const auto back = decode_opening(wrong);
    // Only the version may differ.
    EXPECT_EQ(back.ok(), i >= 8 && i < 12) << i;
  }
  EXPECT_FALSE(may_be_opening(test::bytes_of("GET ")));
}

TEST(Handshake, capabilities_that_are_not_known_are_no_error_and_other_bytes_stay_zero) {
  LaneHello hello;
  hello.capabilities = ~0U;
  auto said = encode_lane_hello(hello);
  ASSERT_TRUE(decode_lane_hello(said).ok());
  EXPECT_EQ(decode_lane_hello(said).value().capabilities, ~0U);
  hello.fills = true;
  EXPECT_EQ(decode_lane_hello(encode_lane_hello(hello)).value(), hello);
  for (const std::size_t field : {48U, 49U, 50U, 51U}) {
    auto wrong = said;
    wrong[field] = std::byte{2};
    EXPECT_FALSE(decode_lane_hello(wrong).ok()) << field;
  }
  for (const bool another : {true, false}) {
    const LaneOffer offer{another, ~0U};
    const auto offered = encode_lane_offer(offer);
    ASSERT_TRUE(decode_lane_offer(offered).ok());
    EXPECT_EQ(decode_lane_offer(offered).value(), offer);
    for (const std::size_t field : {0U, 1U, 3U}) {
      auto wrong = offered;
      wrong[field] = std::byte{3};
      EXPECT_FALSE(decode_lane_offer(wrong).ok()) << field;
    }
  }
}

}  // namespace
}  // namespace pccl
