#include "wire/codec.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "next_version.h"
#include "random_message.h"
#include "wire/cbor.h"

namespace pccl {
namespace {

using nlohmann::json;

template <typename Variant>
Result<Variant> decode_as(std::span<const std::byte> bytes) {
  if constexpr (std::is_same_v<Variant, PeerToMaster>) {
    return decode_peer_to_master(bytes);
  } else if constexpr (std::is_same_v<Variant, MasterToPeer>) {
    return decode_master_to_peer(bytes);
  } else {
    return decode_peer_to_peer(bytes);
  }
}

/// The same bytes as a general CBOR library reads them.
json oracle(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return json::from_cbor(data, data + bytes.size());
}

std::vector<std::byte> from_json(const json& value) {
  const std::vector<std::uint8_t> bytes = json::to_cbor(value);
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  return {data, data + bytes.size()};
}

template <typename Variant>
class Codec : public testing::Test {};
using Variants = testing::Types<PeerToMaster, MasterToPeer, PeerToPeer>;
TYPED_TEST_SUITE(Codec, Variants);

TYPED_TEST(Codec, every_message_comes_back_as_it_was) {
  Random random(11);
  for (std::size_t index = 0; index < std::variant_size_v<TypeParam>; ++index) {
    for (int i = 0; i < 200; ++i) {
      const auto message = test::random_message<TypeParam>(random, index);
      const auto bytes = encode(message);
      const auto back = decode_as<TypeParam>(bytes);
      ASSERT_TRUE(back.ok()) << back.error().text << " in " << print(message);
      EXPECT_TRUE(back.value() == message) << print(message);
    }
  }
}

TYPED_TEST(Codec, a_general_library_reads_a_map_with_the_name_under_m) {
  Random random(12);
  for (std::size_t index = 0; index < std::variant_size_v<TypeParam>; ++index) {
    const auto message = test::random_message<TypeParam>(random, index, 2, 8);
    const std::string name =
        std::visit([](const auto& m) { return std::string(m.kName); }, message);
    const json read = oracle(encode(message));
    EXPECT_EQ(read["m"], name);
    std::visit(
        [&](const auto& m) {
          EXPECT_EQ(read.size(), 1 + cbor::count_fields(m));
          std::decay_t<decltype(m)>::fields(
              m, [&](std::string_view field, auto&&...) { EXPECT_TRUE(read.contains(field)); });
        },
        message);
  }
}

TYPED_TEST(Codec, every_truncation_and_every_byte_more_is_malformed) {
  Random random(13);
  for (std::size_t index = 0; index < std::variant_size_v<TypeParam>; ++index) {
    const auto bytes = encode(test::random_message<TypeParam>(random, index));
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const auto cut = decode_as<TypeParam>(std::span(bytes).first(size));
      ASSERT_FALSE(cut.ok());
      EXPECT_EQ(cut.error().code, ErrorCode::malformed);
    }
    auto longer = bytes;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(decode_as<TypeParam>(longer).ok());
  }
}

TYPED_TEST(Codec, fields_of_a_later_version_are_skipped_wherever_they_stand) {
  Random random(15);
  for (std::size_t index = 0; index < std::variant_size_v<TypeParam>; ++index) {
    for (int i = 0; i < 50; ++i) {
      const auto message = test::random_message<TypeParam>(random, index, 4, 20);
      const auto bytes = test::of_next_version(encode(message));
      EXPECT_GT(bytes.size(), encode(message).size());
      const auto back = decode_as<TypeParam>(bytes);
      ASSERT_TRUE(back.ok()) << back.error().text << " in " << print(message);
      EXPECT_TRUE(back.value() == message) << print(message);
      for (std::size_t size = 0; i == 0 && size < bytes.size(); ++size) {
        ASSERT_FALSE(decode_as<TypeParam>(std::span(bytes).first(size)).ok());
      }
    }
  }
}

TYPED_TEST(Codec, whatever_is_taken_from_mutated_bytes_is_written_back_as_these_bytes) {
  Random random(14);
  std::size_t taken = 0;
  for (int i = 0; i < 20000; ++i) {
    auto bytes = encode(
        test::random_message<TypeParam>(random, random.below(std::variant_size_v<TypeParam>)));
    for (std::uint64_t n = 1 + random.below(4); n > 0; --n) {
      bytes[random.below(bytes.size())] = static_cast<std::byte>(random.next());
    }
    const auto back = decode_as<TypeParam>(bytes);
    if (!back.ok()) continue;
    const auto again = encode(back.value());
    if (again.size() == bytes.size()) {
      ++taken;
      EXPECT_EQ(again, bytes);
    } else {  // fields at its end that are not known, or not there
      const auto same = decode_as<TypeParam>(again);
      ASSERT_TRUE(same.ok());
      EXPECT_TRUE(same.value() == back.value());
    }
    EXPECT_FALSE(print(back.value()).empty());
  }
  EXPECT_GT(taken, 100U);
}

TEST(CodecRules, a_field_that_was_added_later_keeps_its_default_where_it_is_missing) {
  Hello hello;
  hello.run = "a run";
  hello.package = "7.0.0";
  auto value = nlohmann::ordered_json::from_cbor(encode(PeerToMaster(hello)));
  for (const char* added : {"package", "host", "started_mark", "accepted_mark"}) value.erase(added);
  const auto without = [&] {
    std::vector<std::byte> bytes;
    for (const std::uint8_t byte : nlohmann::ordered_json::to_cbor(value))
      bytes.push_back(static_cast<std::byte>(byte));
    return decode_peer_to_master(bytes);
  };
  const auto back = without();
  ASSERT_TRUE(back.ok()) << back.error().text;
  hello.package = "";
  EXPECT_TRUE(back.value() == PeerToMaster(hello));
  value.erase("door_root");  // of the first form
  EXPECT_FALSE(without().ok());
}

TEST(CodecRules, missing_repeated_and_reordered_fields_are_malformed) {
  const json good = {{"m", "expired"}, {"epoch", 5}, {"op", {1, 2}}};
  // json sorts its keys; the wire has the order of the struct, so maps are made by hand.
  const auto map = [](std::initializer_list<std::pair<std::string, json>> fields) {
    std::vector<std::byte> out;
    cbor::Writer writer(out);
    writer.head(cbor::Major::map, fields.size());
    for (const auto& [name, value] : fields) {
      writer.text(name);
      const auto bytes = from_json(value);
      out.insert(out.end(), bytes.begin(), bytes.end());
    }
    return out;
  };
  const json op = {1, 2};
  EXPECT_TRUE(decode_peer_to_master(map({{"m", "expired"}, {"epoch", 5}, {"op", op}})).ok());
  const std::vector<std::vector<std::byte>> wrong = {
      map({{"m", "expired"}, {"epoch", 5}}),
      map({{"m", "expired"}, {"op", op}, {"epoch", 5}}),
      map({{"m", "expired"}, {"epoch", 5}, {"epoch", 5}}),
      map({{"m", "expired"}, {"epoch", 5}, {"op", op}, {"op", op}}),
      map({{"m", "expired"}, {"epoch", 5}, {"op", op}, {"more", 1}, {"epoch", 5}}),
      map({{"m", "expired"}, {"epoch", 5}, {"op", op}, {"more", 1.5}}),
      map({{"m", "expired"}, {"epoch", 5}, {"more", 1}, {"op", op}}),
      map({{"epoch", 5}, {"op", op}}),
      map({{"m", "expire"}, {"epoch", 5}, {"op", op}}),
      map({{"m", 7}, {"epoch", 5}, {"op", op}}),
      map({{"m", "expired"}, {"epoch", -5}, {"op", op}}),
      map({{"m", "expired"}, {"epoch", "5"}, {"op", op}}),
      map({{"m", "expired"}, {"epoch", 5.0}, {"op", op}}),
      map({{"m", "expired"}, {"epoch", 5}, {"op", {1, 2, 3}}}),
      map({{"m", "commit"}, {"epoch", 5}, {"op", op}}),  // the master's, not a peer's
      from_json(json::array({1, 2})),
      from_json(json(nullptr)),
      {}};
  for (const auto& bytes : wrong) {
    const auto back = decode_peer_to_master(bytes);
    ASSERT_FALSE(back.ok());
    EXPECT_EQ(back.error().code, ErrorCode::malformed);
    EXPECT_FALSE(back.error().text.empty());
  }
}

TEST(CodecRules, forms_that_say_the_same_otherwise_are_malformed) {
  const auto bytes = encode(PeerToMaster(Bye{}));
  ASSERT_EQ(static_cast<unsigned>(bytes[0]), 0xA2U);
  // The number of fields in two bytes; indefinite length; a tag before it.
  for (const std::vector<unsigned>& start :
       {std::vector<unsigned>{0xB8, 0x02}, {0xBF}, {0xC1, 0xA2}, {0xB9, 0x00, 0x02}}) {
    std::vector<std::byte> other;
    for (const unsigned byte : start) other.push_back(static_cast<std::byte>(byte));
    other.insert(other.end(), bytes.begin() + 1, bytes.end());
    if (start[0] == 0xBF) other.push_back(std::byte{0xFF});
    EXPECT_FALSE(decode_peer_to_master(other).ok());
  }
}

TEST(CodecRules, deep_nesting_and_absurd_lengths_end_at_their_first_byte) {
  for (const unsigned byte : {0x81U, 0xA1U, 0xD8U, 0x9FU, 0xBFU, 0xFBU}) {
    const std::vector<std::byte> deep(100000, static_cast<std::byte>(byte));
    EXPECT_FALSE(decode_peer_to_master(deep).ok());
    EXPECT_FALSE(decode_handle(deep).ok());
  }
  // Also in a field that nobody knows.
  for (const unsigned byte : {0x81U, 0xA1U}) {
    std::vector<std::byte> bytes;
    cbor::Writer writer(bytes);
    writer.head(cbor::Major::map, 2);
    writer.text("m");
    writer.text("bye");
    writer.text("later");
    bytes.insert(bytes.end(), 100000, static_cast<std::byte>(byte));
    const auto back = decode_peer_to_master(bytes);
    ASSERT_FALSE(back.ok());
  }
  // Done with 2^63 operations, then with 65,536 that are not there.
  for (const std::vector<unsigned>& length :
       {std::vector<unsigned>{0x9B, 0x80, 0, 0, 0, 0, 0, 0, 0}, {0x99, 0xFF, 0xFF}}) {
    auto bytes = encode(PeerToMaster(Done{}));
    ASSERT_EQ(static_cast<unsigned>(bytes.back()), 0x80U);  // the empty list
    bytes.pop_back();
    for (const unsigned b : length) bytes.push_back(static_cast<std::byte>(b));
    EXPECT_FALSE(decode_peer_to_master(bytes).ok());
  }
}

TEST(CodecRules, limits_hold_for_lists_their_entries_texts_and_numbers) {
  StoreRequest request;
  request.keys = {std::string(kStoreKeyBytesMax, 'k')};
  EXPECT_TRUE(decode_peer_to_master(encode(PeerToMaster(request))).ok());
  request.keys[0] += 'k';
  EXPECT_THROW(encode(PeerToMaster(request)), BrokenInvariant);

  // What a hostile sender writes without our limits: a key of one byte more.
  std::vector<std::byte> out;
  cbor::Writer writer(out);
  writer.head(cbor::Major::map, 7);
  writer.text("m"), writer.text("store_request");
  writer.text("id"), writer.put(std::uint64_t{1});
  writer.text("op"), writer.put(StoreOp::get);
  writer.text("keys"), writer.head(cbor::Major::array, 1);
  writer.text(request.keys[0]);
  writer.text("values"), writer.head(cbor::Major::array, 0);
  writer.text("amount"), writer.put(std::int64_t{0});
  writer.text("timeout_ms"), writer.put(std::uint64_t{0});
  const auto back = decode_peer_to_master(out);
  ASSERT_FALSE(back.ok());
  EXPECT_NE(back.error().text.find("over its limit"), std::string::npos) << back.error().text;

  // Enums take the numbers that they name, u32 fields no larger ones.
  Vote vote;
  vote.kind = static_cast<VoteKind>(3);
  EXPECT_FALSE(decode_peer_to_master(encode(PeerToMaster(vote))).ok());
  std::vector<std::byte> number;
  cbor::Writer(number).put(std::uint64_t{1} << 32);
  cbor::Reader reader(number);
  std::uint32_t small = 0;
  reader.get(small);
  EXPECT_FALSE(reader.ok());
}

TEST(CodecRules, a_failure_has_the_code_of_one) {
  const Error none;  // would end an operation, or a receive, as if it had succeeded
  const Error some{ErrorCode::mismatch, "x"};
  for (const Error& error : {none, some}) {
    const std::vector<PeerToPeer> between{GroupFailed{GroupId{1}, error},
                                          OpFailed{GroupId{1}, OpKey{}, error, false},
                                          Withdraw{GroupId{1}, EpochId{}, 0, 0, error}};
    for (const PeerToPeer& message : between) {
      EXPECT_EQ(decode_peer_to_peer(encode(message)).ok(), error.failed()) << print(message);
    }
    const std::vector<MasterToPeer> of_master{FailOp{EpochId{}, Failure{OpKey{}, error}},
                                              Refuse{error}};
    for (const MasterToPeer& message : of_master) {
      EXPECT_EQ(decode_master_to_peer(encode(message)).ok(), error.failed()) << print(message);
    }
  }
  EXPECT_TRUE(decode_peer_to_peer(encode(PeerToPeer{Accept{}})).ok()) << "success is no failure";
}

TEST(CodecRules, words_for_people_are_cut_between_characters_instead_of_refused) {
  Mismatch mismatch;
  for (std::size_t i = 0; i < kTextBytesMax; ++i) mismatch.error.text += "é";
  const auto back = decode_peer_to_master(encode(PeerToMaster(mismatch)));
  ASSERT_TRUE(back.ok()) << back.error().text;
  const auto& text = std::get<Mismatch>(back.value()).error.text;
  EXPECT_EQ(text.size(), kTextBytesMax);
  EXPECT_TRUE(cbor::valid_utf8(text));
}

TEST(CodecRules, store_keys_of_any_bytes_come_back) {
  StoreRequest request;
  request.keys = {"plain", "gr\xc3\xbc\xc3\x9f", std::string("\xff\xfe\x00\x01", 4), "",
                  "\xed\xa0\x80"};
  const auto bytes = encode(PeerToMaster(request));
  const auto back = decode_peer_to_master(bytes);
  ASSERT_TRUE(back.ok()) << back.error().text;
  EXPECT_EQ(std::get<StoreRequest>(back.value()).keys, request.keys);
  const json read = oracle(bytes);
  EXPECT_TRUE(read["keys"][1].is_string());
  EXPECT_TRUE(read["keys"][2].is_binary());
}

TEST(CodecRules, signed_numbers_of_all_sizes_agree_with_the_general_library) {
  for (const std::int64_t amount :
       {std::int64_t{0}, std::int64_t{-1}, std::int64_t{-24}, std::int64_t{-25}, std::int64_t{255},
        std::int64_t{-257}, std::int64_t{1} << 40, std::numeric_limits<std::int64_t>::min(),
        std::numeric_limits<std::int64_t>::max()}) {
    StoreReply reply;
    reply.amount = amount;
    const auto bytes = encode(MasterToPeer(reply));
    EXPECT_EQ(oracle(bytes)["amount"], amount);
    EXPECT_EQ(std::get<StoreReply>(decode_master_to_peer(bytes).value()).amount, amount);
  }
}

TEST(CodecRules, handles_come_back_and_their_key_is_never_printed) {
  Hello hello;
  hello.member.handle = {PeerId{0xABCD}, {"127.0.0.1:5", "[::1]:6"}, {}};
  hello.member.handle.key.fill(0x77);
  const auto back = decode_handle(encode(hello.member.handle));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back.value(), hello.member.handle);
  const std::string text = print(PeerToMaster(hello));
  EXPECT_EQ(text.find("7777"), std::string::npos);
  EXPECT_NE(text.find("000000000000abcd"), std::string::npos);
}

TEST(CodecRules, print_is_one_line_with_long_lists_shortened) {
  Commit commit;
  commit.epoch = EpochId::make(2, 7);
  for (std::uint64_t i = 0; i < 100; ++i) commit.ops.push_back({1, i});
  EXPECT_EQ(print(MasterToPeer(commit)),
            "commit epoch=2.7 ops=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, … 100 in all] flags=[]");
  Evicted evicted;
  evicted.text = "a\nb\"c\xff";
  EXPECT_EQ(print(MasterToPeer(evicted)), "evicted text=\"a\\x0ab\\\"c\\xff\"");
}

TEST(CodecRules, what_is_on_the_path_of_every_operation_takes_microseconds) {
  Done done;
  for (std::uint64_t i = 0; i < 16; ++i) done.ops.push_back({1000, i});
  const auto start = std::chrono::steady_clock::now();
  constexpr int kRounds = 2000;
  std::size_t total = 0;
  for (int i = 0; i < kRounds; ++i) {
    const auto bytes = encode(PeerToMaster(done));
    total += std::get<Done>(decode_peer_to_master(bytes).value()).ops.size();
  }
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(total, 16U * kRounds);
  std::printf("[  us  ] %.2f for Done with 16 operations, both ways\n", took.count() / kRounds);
  EXPECT_LT(took.count() / kRounds, 200.0);  // generous: sanitizers, busy machines
}

}  // namespace
}  // namespace pccl
