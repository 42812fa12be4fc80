// fuzz_seeds FOLDER writes the inputs from which the corpora began: a message of each kind, frames,
// token lines, a register, and the bytes that two sound processes say before the first frame.
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../../cpp/transport/memory_stream.h"
#include "../../cpp/wire/random_message.h"
#include "base/protocol.h"
#include "master/register_file.h"
#include "targets.h"
#include "transport/entrance.h"
#include "transport/handshake.h"
#include "transport/loop.h"
#include "transport/relay_message.h"
#include "transport/talk.h"
#include "trust/token.h"
#include "wire/codec.h"

namespace pccl::fuzz {
namespace {

std::filesystem::path folder;
int numbers = 0;

void put(const std::string& target, std::vector<unsigned> first, Bytes bytes) {
  std::filesystem::create_directories(folder / target);
  std::ofstream file(folder / target / ("seed" + std::to_string(numbers++)), std::ios::binary);
  for (const unsigned byte : first) file.put(static_cast<char>(byte));
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}
void put(const std::string& target, std::vector<unsigned> first, const std::string& text) {
  put(target, std::move(first), std::as_bytes(std::span(text)));
}

/// What the two ends of a relayed link say and send, passed on in order; and ends that lie.
void put_relays() {
  const std::vector<unsigned> passed = {6, 3, 7, 3, 6, 3, 7, 3};  // an action, a number of frames
  const std::vector<std::vector<unsigned>> actions = {
      {1, 6, 4, 7, 4}, {0, 2, 1, 3, 5}, {4, 2, 4, 2}, {0, 0, 1, 1}, {20, 24}, {22, 24, 25}};
  for (const unsigned damage : {10U, 12U, 14U, 16U, 18U, 28U}) {
    std::vector<unsigned> all = {0};
    for (int twice = 0; twice < 2; ++twice) {
      all.insert(all.end(), passed.begin(), passed.end());
      for (const auto& some : actions) {
        all.insert(all.end(), some.begin(), some.end());
        all.insert(all.end(), {damage, damage + 1});
        all.insert(all.end(), passed.begin(), passed.end());
      }
    }
    put("relays", all, "");
    all[0] = 1;
    put("relays", all, "");
  }
}

template <typename Variant>
void put_all(unsigned decoder, Random& random) {
  for (std::size_t kind = 0; kind < std::variant_size_v<Variant>; ++kind) {
    put("wire", {decoder}, encode(test::random_message<Variant>(random, kind, 2, 12)));
  }
}

std::string base64_of(std::uint8_t n) {
  std::array<std::uint8_t, 32> bytes{};
  bytes.fill(n);
  return to_base64(bytes);
}
KeyPair key(std::uint8_t n) {
  std::array<std::uint8_t, 32> bytes{};
  bytes.fill(n);
  return KeyPair::from(Secret(bytes));
}

/// What each of two ends of a channel said to the other, who both hold the token.
void put_entrance() {
  Loop loop;
  auto [master_end, wire_a] = test::MemoryStream::pair(loop, 1U << 16, 1U << 20);
  auto [member_end, wire_b] = test::MemoryStream::pair(loop, 1U << 16, 1U << 20);
  std::array<std::uint8_t, 32> three{};
  three.fill(3);
  const Tokens tokens({{"t", Secret(three), key_hash(key(1).public_key()), {}}}, "F");
  const auto at_master = std::make_shared<Talk>(loop, std::move(master_end), 5000);
  const auto at_member = std::make_shared<Talk>(loop, std::move(member_end), 5000);
  at_master->on_failed([](const TalkEnd&) {});
  at_member->on_failed([](const TalkEnd&) {});
  admit(loop, at_master, std::make_shared<Entrance>(Entrance{key(1), tokens}),
        [](const Caller&) {});
  enter(loop, at_member, {key(2), std::make_shared<const Tokens>(tokens), "r"},
        [](const Error&) {});
  std::vector<std::byte> said[2];
  for (int round = 0; round < 500; ++round) {
    loop.run_once(false);
    std::array<std::byte, 4096> some;
    Stream* const from[] = {wire_a.get(), wire_b.get()};
    for (int side = 0; side < 2; ++side) {
      const auto got = from[side]->read(some);
      if (got.bytes == 0) continue;
      const auto bytes = std::span<const std::byte>(some).first(got.bytes);
      said[side].insert(said[side].end(), bytes.begin(), bytes.end());
      (void)from[1 - side]->write(bytes);
    }
  }
  put("doors", {0, 0}, said[1]);
  put("doors", {1, 0}, said[0]);
  put("doors", {2, 1, 1, 1, 0}, said[1]);  // the same first flight to a gate
  put("doors", {3, 1, 1, 0}, std::span<const std::byte>(said[0]).subspan(40));
}

void put_lane() {
  const auto opening = encode_opening({kProtocolVersion, Purpose::lane});
  put("lane", {0}, opening);
  put("doors", {2, 0, 0}, opening);
  put("doors", {3, 0, 0}, opening);
  LaneHello hello;
  hello.dialer = key(1).public_key();
  hello.acceptor = peer_of(key(2).public_key());
  hello.link = 5;
  put("lane", {0}, encode_lane_hello(hello));
  put("doors", {2, 1, 0, 0}, encode_lane_hello(hello));
  put("lane", {0}, encode_lane_offer({}));
  put("lane", {0}, encode_lane_answer(LaneVerdict::accepted));
  put("lane", {0}, encode_master_offer({true, key(1).public_key()}));
  for (const auto kind : {RelayKind::open, RelayKind::control, RelayKind::down}) {
    // What an end says of itself when it opens; else something sealed.
    const std::string rest = kind == RelayKind::open
                                 ? '\1' + std::string(7, '\0') + std::string(64, 'k')
                                 : std::string(8 + kSealTagBytes, 's');
    put("lane", {0},
        encode_relay({kind, PeerId{1}, PeerId{2}, 3, 4, std::as_bytes(std::span(rest))}));
  }
  for (unsigned type = 0; type < 7; ++type) {
    std::string frames;
    for (unsigned i = 0; i < 3; ++i) {
      const bool crc = i == 0;  // guided/lane.cpp reads the type and the flags from one byte
      unsigned what = type + (crc ? 7 * 5 : 0);
      while ((what % 8 == 7) || ((what & 32) != 0) != crc || (what & 192) != 0) what += 7;
      frames += static_cast<char>(what);
      frames += std::string(type == 1 || type == 4 || type == 6 ? 72 : 8, '\1');
      if (type == 6) {
        std::string slice(16, '\0');
        slice[12] = static_cast<char>(40);
        frames += slice;
      }
      if (type == 4) frames += std::string(kRoutedHeaderBytes - kSegmentHeaderBytes, '\2');
      frames += static_cast<char>(40);
      frames += std::string(40, 'p');
      frames += '\0';
    }
    put("lane", {1U + 16 * (type % 2)}, frames);
    put("lane", {5U + 8 * (type % 2), 9}, frames);
  }
}

/// Each slice of some segments, whole, over the lanes in turn; and in parts, over two at a time.
void put_slices() {
  std::vector<unsigned> whole;
  std::vector<unsigned> parts;
  const std::vector<unsigned> moves_on = {0, 0, 1};
  // An action: a lane, what it does, the segment, the slice, no lie, no checksum, how much of it.
  for (unsigned i = 0; i < 24; ++i) {
    whole.insert(whole.end(), {i % 4, 5, 0, i % 3, 31, 1});
    parts.insert(parts.end(), {i % 4, 12, i / 3 % 2, i % 3, 31, 1, i % 64});
    parts.insert(parts.end(), {(i + 1) % 4, 12, i / 3 % 2, i % 3, 31, 1, 20});
    parts.insert(parts.end(), {i % 4, 5, (i + 1) % 4, 5});
    if (i % 3 < 2) continue;
    whole.insert(whole.end(), moves_on.begin(), moves_on.end());
    parts.insert(parts.end(), moves_on.begin(), moves_on.end());
  }
  put("slices", whole, "");
  put("slices", parts, "");
}

void make() {
  Random random(1);
  put_relays();
  put_slices();
  put_all<PeerToMaster>(0, random);
  put_all<MasterToPeer>(1, random);
  put_all<PeerToPeer>(2, random);
  Handle handle;
  test::Filler(random, 2, 20).put(handle);
  put("wire", {3}, encode(handle));
  master::NamedRegister held;
  for (int i = 0; i < 4; ++i) {
    test::Filler(random, 3, 20).put(held);
    put("wire", {4}, cbor::encode_struct(held));
    held.run = "r";
    for (unsigned how = 0; how < 4; ++how) {
      put("registers", {0, how * 5}, cbor::encode_struct(held));
    }
    put("registers", {1}, master::format_register(held));
  }
  put("registers", {0, 0}, cbor::encode_struct(master::NamedRegister{"r", {}}));
  const std::string hash(64, 'a');
  const std::string line = "gpu-1:" + base64_of(5) + ":" + hash;
  put("tokens", {0}, "# mine\n\n" + line + "@a,b\nx:" + base64_of(6) + ":" + hash + "\n");
  put("tokens", {1}, line);
  put("tokens", {2}, format_identity({"t", key(2).public_key(), "r"}));
  put("tokens", {2}, format_identity({"t", key(2).public_key(), ""}));
  put("tokens", {3}, base64_of(7));
  put("tokens", {4}, std::string(60, '\1'));
  put("state", {}, std::string("\0\3\0\1\1\0\2\1\2\5\5\5\2\3", 14));
  put("state", {}, std::string("\0\2\1\1\2\1\3\15\3\1\25\3\5\5\5\2\3\4", 18));
  put_lane();
  put_entrance();
}

}  // namespace
}  // namespace pccl::fuzz

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  pccl::fuzz::folder = argv[1];
  pccl::fuzz::make();
  return 0;
}
