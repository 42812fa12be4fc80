// A TLS stream carries every byte, is refused with a text that says why, and hands out nothing that
// somebody between the ends has touched.
#include "transport/tls_stream.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <map>
#include <utility>

#include "base/random.h"
#include "memory_stream.h"
#include "no_memory.h"
#include "support.h"
#include "trust/sealer.h"
#include "trust/token.h"

namespace pccl {
namespace {

using test::MemoryStream;
using Outcome = Stream::Outcome;

constexpr std::string_view kIdentity = "pccl lane a b 7";
constexpr std::byte kPoison{0xa5};

/// One end that sends `sends`, then says that it sends no more, and keeps what it receives.
struct TlsEnd {
  void use(std::unique_ptr<TlsStream> made) {
    stream = std::move(made);
    stream->on_ready([this](bool readable, bool writable) {
      if (writable) write();
      if (readable) read();
    });
    stream->want(true, true);
  }
  void write() {
    while (sent < sends.size()) {
      // In three parts of which one is small, as a lane's header and payload.
      std::span<std::byte> rest = std::span(sends).subspan(sent, std::min(per_write, left()));
      const std::size_t cut = std::min<std::size_t>(rest.size(), 80);
      const std::array<iovec, 3> parts = {iovec{rest.data(), cut}, iovec{nullptr, 0},
                                          iovec{rest.data() + cut, rest.size() - cut}};
      const Stream::Moved moved = stream->write(parts);
      if (moved.outcome == Outcome::failed) write_error = moved.error;
      if (moved.outcome != Outcome::moved) break;
      sent += moved.bytes;
    }
    if (sent == sends.size() && shuts) stream->shut();
    stream->want(reads, sent < sends.size() && write_error.empty());
  }
  void read() {
    for (int turn = 0; turn < turns; ++turn) {
      std::vector<std::byte> into(per_read, kPoison);
      const Stream::Moved moved = stream->read(into);
      untouched &= std::all_of(into.begin() + static_cast<std::ptrdiff_t>(moved.bytes), into.end(),
                               [](std::byte byte) { return byte == kPoison; });
      received.insert(received.end(), into.begin(),
                      into.begin() + static_cast<std::ptrdiff_t>(moved.bytes));
      ended = moved.outcome == Outcome::ended;
      if (moved.outcome == Outcome::failed) error = moved.error;
      if (moved.outcome == Outcome::later) return;
      if (moved.outcome != Outcome::moved) {
        reads = false;
        stream->want(false, sent < sends.size());
        return;
      }
    }
  }
  [[nodiscard]] std::size_t left() const { return sends.size() - sent; }
  [[nodiscard]] bool over() const { return ended || !error.empty(); }

  std::unique_ptr<TlsStream> stream;
  std::vector<std::byte> sends;
  std::vector<std::byte> received;
  std::size_t sent = 0;
  std::size_t per_write = 3U << 20;
  std::size_t per_read = 200000;
  int turns = 1000;
  bool shuts = true;
  bool reads = true;
  bool ended = false;
  bool untouched = true;  // the memory behind the bytes that a read has returned
  std::string error;
  std::string write_error;
};

std::vector<std::byte> random_bytes(std::uint64_t seed, std::size_t bytes) {
  Random random(seed);
  std::vector<std::byte> made(bytes);
  for (auto& byte : made) byte = static_cast<std::byte>(random.next());
  return made;
}

TlsStream::Find knows(const Secret& key) {
  return [key](std::string_view identity) -> std::optional<Secret> {
    if (identity != kIdentity) return std::nullopt;
    return key;
  };
}

std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>> socket_pair(Loop& loop) {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  return {std::make_unique<SocketStream>(loop, Socket(loop, fds[0])),
          std::make_unique<SocketStream>(loop, Socket(loop, fds[1]))};
}

/// `a` dials and `b` accepts with one key, over the two ends of `below`.
template <typename Streams>
void connect(Loop& loop, Streams below, TlsEnd& a, TlsEnd& b) {
  const Secret key = random_secret();
  a.use(TlsStream::dial(loop, std::move(below.first), kIdentity, key));
  b.use(TlsStream::accept(loop, std::move(below.second), knows(key)));
}

void expect_all_bytes(Loop& loop, TlsEnd& a, TlsEnd& b) {
  ASSERT_TRUE(test::poll_until(loop, [&] { return a.over() && b.over(); }));
  EXPECT_EQ(a.error + b.error + a.write_error + b.write_error, "");
  EXPECT_TRUE(a.received == b.sends);
  EXPECT_TRUE(b.received == a.sends);
  EXPECT_TRUE(a.untouched && b.untouched);
}

TEST(TlsStream, carries_every_byte_both_ways_whatever_the_pieces_of_the_stream_below) {
  for (const std::size_t piece : {1U, 7U, 4096U, 1U << 20}) {
    Loop loop;
    TlsEnd a;
    TlsEnd b;
    a.sends = random_bytes(piece, piece < 10 ? 3000 : 1500000);
    b.sends = random_bytes(piece + 1, piece < 10 ? 2000 : 700000);
    connect(loop, MemoryStream::pair(loop, piece, 30000), a, b);
    expect_all_bytes(loop, a, b);
  }
}

/// Carries bytes between two memory streams, and changes one bit of the byte at `at` of those that
/// the dialler has sent.
void carry(Stream& from, Stream& to, std::size_t& carried, std::size_t at = ~std::size_t{0}) {
  std::array<std::byte, 3000> bytes{};
  const Stream::Moved got = from.read(bytes);
  if (got.outcome != Outcome::moved) return;
  if (at >= carried && at < carried + got.bytes) bytes[at - carried] ^= std::byte{0x10};
  carried += got.bytes;
  ASSERT_EQ(to.write(std::span(bytes).first(got.bytes)).bytes, got.bytes);
}

/// Bytes on the wire for a MiB, in writes of a record each, with these bytes of one key.
std::size_t bytes_on_the_wire(std::uint64_t bytes_of_one_key) {
  constexpr std::size_t kRecord = 16384;
  Loop loop;
  const Secret key = random_secret();
  auto [near, left] = MemoryStream::pair(loop, 1U << 20, 4U << 20);
  auto [right, far] = MemoryStream::pair(loop, 1U << 20, 4U << 20);
  const auto a = TlsStream::dial(loop, std::move(near), kIdentity, key, bytes_of_one_key);
  const auto b = TlsStream::accept(loop, std::move(far), knows(key));
  std::size_t there = 0;
  std::size_t back = 0;
  const auto carry_all = [&, &left = left, &right = right] {
    carry(*left, *right, there);
    carry(*right, *left, back);
  };
  EXPECT_TRUE(test::poll_until(loop, [&] {
    carry_all();
    return a->established() && b->established();
  }));
  const auto record = random_bytes(5, kRecord);
  std::size_t received = 0;
  std::vector<std::byte> into(kRecord);
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(a->write(std::span<const std::byte>(record)).bytes, kRecord);
    EXPECT_TRUE(test::poll_until(loop, [&] {
      carry_all();
      const auto got = b->read(into);
      EXPECT_TRUE(std::equal(into.begin(), into.begin() + static_cast<std::ptrdiff_t>(got.bytes),
                             record.begin() + static_cast<std::ptrdiff_t>(received % kRecord)));
      received += got.bytes;
      return received == static_cast<std::size_t>(i + 1) * kRecord;
    }));
  }
  return there;
}

TEST(TlsStream, the_keys_are_changed_after_so_many_bytes) {
  // A change is a record of its own: its header, a message of 5 bytes, its type, the tag.
  constexpr std::size_t kChange = 5 + 5 + 1 + 16;
  const std::size_t without = bytes_on_the_wire(1ULL << 40);
  EXPECT_EQ(bytes_on_the_wire(4 * 16384) - without, 15 * kChange);
  EXPECT_EQ(bytes_on_the_wire(32 * 16384) - without, 1 * kChange);
}

TEST(TlsStream, a_dialler_offers_keys_that_nobody_keeps_and_the_cipher_of_its_hardware_first) {
  Loop loop;
  auto [near, far] = MemoryStream::pair(loop, 1U << 20, 1U << 20);
  const auto a = TlsStream::dial(loop, std::move(near), kIdentity, random_secret());
  std::vector<std::byte> hello(4096);
  std::size_t came = 0;
  ASSERT_TRUE(test::poll_until(loop, [&, &far = far] {
    came = far->read(std::span(hello)).bytes;
    return came > 0;
  }));
  std::size_t at = 0;
  const auto number = [&](int bytes) {
    std::size_t value = 0;
    while (bytes-- > 0) value = value << 8 | static_cast<std::size_t>(hello.at(at++));
    return value;
  };
  at = 5 + 4 + 2 + 32;  // the headers of record and message, an old version, a random number
  at += number(1);      // a session
  std::vector<std::size_t> suites;
  for (std::size_t left = number(2) / 2; left > 0; --left) suites.push_back(number(2));
  constexpr std::size_t kAes128Gcm = 0x1301;
  constexpr std::size_t kChaCha20 = 0x1303;
  ASSERT_GE(suites.size(), 2U);
  EXPECT_EQ(suites[0], has_aes() ? kAes128Gcm : kChaCha20);
  EXPECT_EQ(suites[1], has_aes() ? kChaCha20 : kAes128Gcm);
  at += number(1);  // compression
  std::map<std::size_t, std::vector<std::size_t>> extensions;
  const std::size_t end = number(2) + at;
  ASSERT_EQ(end, came);
  while (at < end) {
    auto& bytes = extensions[number(2)];
    for (std::size_t left = number(2); left > 0; --left) bytes.push_back(number(1));
  }
  // RFC 8446, 4.2: 45 is psk_key_exchange_modes, and its mode 1 psk_dhe_ke; 43 supported_versions;
  // 10 supported_groups, of which 29 is X25519.
  EXPECT_EQ(extensions[45], (std::vector<std::size_t>{1, 1}));
  EXPECT_EQ(extensions[43], (std::vector<std::size_t>{2, 3, 4}));
  EXPECT_EQ(extensions[10], (std::vector<std::size_t>{0, 2, 0, 29}));
}

TEST(TlsStream, carries_every_byte_over_sockets_with_keys_that_change) {
  Loop loop;
  const Secret key = random_secret();
  auto [near, far] = socket_pair(loop);
  TlsEnd a;
  TlsEnd b;
  a.sends = random_bytes(1, 20U << 20);
  b.sends = random_bytes(2, 9U << 20);
  a.use(TlsStream::dial(loop, std::move(near), kIdentity, key, 1U << 20));
  b.use(TlsStream::accept(loop, std::move(far), knows(key), 100000));
  expect_all_bytes(loop, a, b);
}

TEST(TlsStream, bytes_that_have_left_the_socket_already_are_announced_all_the_same) {
  Loop loop;
  TlsEnd a;
  TlsEnd b;
  a.sends = random_bytes(1, 50000);
  b.per_read = 100;
  b.turns = 1;  // for each time that it is told
  connect(loop, socket_pair(loop), a, b);
  expect_all_bytes(loop, a, b);
}

TEST(TlsStream, a_message_that_has_come_whole_is_read_by_one_call_on_the_stream_below) {
  Loop loop;
  const Secret key = random_secret();
  auto [near, far] = MemoryStream::pair(loop, 1U << 20, 1U << 20);
  const MemoryStream* below = far.get();
  const auto a = TlsStream::dial(loop, std::move(near), kIdentity, key);
  const auto b = TlsStream::accept(loop, std::move(far), knows(key));
  ASSERT_TRUE(test::poll_until(loop, [&] { return a->established() && b->established(); }));
  b->read_ahead();
  std::vector<std::byte> into(200000);
  while (b->read(into).outcome == Outcome::moved) {
  }
  for (const std::size_t bytes : {1U, 84U, 16384U, 100000U}) {
    const std::vector<std::byte> message = random_bytes(bytes, bytes);
    ASSERT_EQ(a->write(std::span<const std::byte>(message)).bytes, bytes);
    const int reads = below->reads;
    ASSERT_EQ(b->read(into).bytes, bytes);
    EXPECT_EQ(below->reads - reads, 1) << bytes;
    EXPECT_TRUE(std::equal(message.begin(), message.end(), into.begin()));
    EXPECT_EQ(b->read(into).outcome, Outcome::later);
  }
}

TEST(TlsStream, peek_shows_what_read_returns_afterwards) {
  Loop loop;
  const Secret key = random_secret();
  auto [near, far] = socket_pair(loop);
  TlsEnd a;
  a.sends = test::bytes_of("hello, world");
  a.use(TlsStream::dial(loop, std::move(near), kIdentity, key));
  const auto b = TlsStream::accept(loop, std::move(far), knows(key));
  std::array<std::byte, 5> into{};
  ASSERT_TRUE(test::poll_until(loop, [&] { return b->peek(into).outcome == Outcome::moved; }));
  EXPECT_EQ(test::text_of(into), "hello");
  EXPECT_EQ(b->read(into).bytes, 5U);
  EXPECT_EQ(test::text_of(into), "hello");
  EXPECT_EQ(b->read(into).bytes, 5U);
  EXPECT_EQ(test::text_of(into), ", wor");
}

TEST(TlsStream, a_dialler_without_the_right_key_is_refused_and_both_ends_say_why) {
  Loop loop;
  auto [near, far] = socket_pair(loop);
  TlsEnd a;
  TlsEnd b;
  a.sends = test::bytes_of("let me in");
  a.use(TlsStream::dial(loop, std::move(near), kIdentity, random_secret()));
  b.use(TlsStream::accept(loop, std::move(far), knows(random_secret())));
  ASSERT_TRUE(test::poll_until(loop, [&] { return a.over() && b.over(); }));
  EXPECT_EQ(b.error, "the TLS handshake failed: binder does not verify");
  EXPECT_NE(a.error.find("the TLS handshake was refused by the other side: "), std::string::npos)
      << a.error;
  EXPECT_EQ(a.error, a.write_error);
  EXPECT_TRUE(b.received.empty());
}

TEST(TlsStream, an_unknown_identity_is_refused_by_its_printable_name) {
  Loop loop;
  auto [near, far] = socket_pair(loop);
  TlsEnd a;
  TlsEnd b;
  a.use(TlsStream::dial(loop, std::move(near), "some\nbody", random_secret()));
  b.use(TlsStream::accept(loop, std::move(far), knows(random_secret())));
  ASSERT_TRUE(test::poll_until(loop, [&] { return a.over() && b.over(); }));
  EXPECT_EQ(b.error.find("no key is known for \"some"), 0U) << b.error;
  EXPECT_EQ(b.error.find('\n'), std::string::npos);
  EXPECT_FALSE(a.error.empty());
}

TEST(TlsStream, an_unknown_identity_of_a_channel_is_refused_by_its_token_and_nothing_random) {
  Loop loop;
  for (int i = 0; i < 2; ++i) {
    auto [near, far] = socket_pair(loop);
    TlsEnd a;
    TlsEnd b;
    const std::string identity = format_identity({"bonn", KeyPair::make().public_key(), "r"});
    a.use(TlsStream::dial(loop, std::move(near), identity, random_secret()));
    b.use(TlsStream::accept(loop, std::move(far),
                            [](std::string_view) { return std::optional<Secret>{}; }));
    ASSERT_TRUE(test::poll_until(loop, [&] { return a.over() && b.over(); }));
    EXPECT_EQ(b.error, "no key is known for the token \"bonn\"");
  }
}

TEST(TlsStream, bytes_that_are_no_tls_and_an_early_end_fail_the_handshake) {
  for (const std::string_view text : {std::string_view("GET / HTTP/1.1\r\n\r\n"), {}}) {
    Loop loop;
    auto [near, far] = socket_pair(loop);
    TlsEnd b;
    b.sends = test::bytes_of("answer");
    b.use(TlsStream::accept(loop, std::move(far), knows(random_secret())));
    if (!text.empty()) {
      ASSERT_EQ(near->write(test::bytes_of(text)).bytes, text.size());
    }
    near->shut();
    ASSERT_TRUE(test::poll_until(loop, [&] { return b.over() && !b.write_error.empty(); }));
    EXPECT_TRUE(b.received.empty());
    EXPECT_FALSE(b.stream->established());
    EXPECT_EQ(b.error, text.empty() ? "" : "the TLS handshake failed: the first bytes are not TLS");
    EXPECT_EQ(b.stream->refused(), !text.empty());
  }
}

TEST(TlsStream, no_byte_that_was_changed_on_its_way_is_handed_out) {
  const auto text = random_bytes(3, 40000);
  int changed = 0;
  for (std::size_t at = 0; at < 42000; at += 997) {
    Loop loop;
    const Secret key = random_secret();
    auto [near, left] = MemoryStream::pair(loop, 1U << 20, 1U << 20);
    auto [right, far] = MemoryStream::pair(loop, 1U << 20, 1U << 20);
    TlsEnd a;
    TlsEnd b;
    a.sends = text;
    a.use(TlsStream::dial(loop, std::move(near), kIdentity, key));
    b.use(TlsStream::accept(loop, std::move(far), knows(key)));
    std::size_t there = 0;
    std::size_t back = 0;
    ASSERT_TRUE(test::poll_until(loop, [&] {
      carry(*left, *right, there, at);
      carry(*right, *left, back);
      return b.over();
    }));
    EXPECT_TRUE(std::equal(b.received.begin(), b.received.end(), text.begin()));
    EXPECT_TRUE(b.untouched) << "bytes lie in memory that were not authenticated";
    changed += b.error.empty() ? 0 : 1;
    EXPECT_TRUE(!b.error.empty() || there <= at || b.received.size() == text.size());
  }
  EXPECT_GE(changed, 40);
}

TEST(TlsStream, what_is_kept_of_a_peer_that_does_not_read_is_bounded) {
  Loop loop;
  TlsEnd a;
  TlsEnd b;
  a.sends = random_bytes(1, 8U << 20);
  b.reads = false;
  connect(loop, MemoryStream::pair(loop, 1U << 20, 20000), a, b);
  b.stream->want(false, false);
  ASSERT_TRUE(test::poll_until(loop, [&] { return a.sent > 0; }));
  for (int turn = 0; turn < 100; ++turn) loop.run_once(false);
  EXPECT_LE(a.sent, TlsStream::kKeptBytes);
  EXPECT_LE(a.stream->unacknowledged_bytes(), TlsStream::kKeptBytes + (20U << 10));
}

TEST(TlsStream, without_memory_for_what_it_sends_it_fails_and_says_so_and_blames_nobody) {
  Loop loop;
  TlsEnd a;
  TlsEnd b;
  a.shuts = b.shuts = false;
  connect(loop, MemoryStream::pair(loop, 1U << 20, 20000), a, b);
  ASSERT_TRUE(test::poll_until(loop, [&] { return a.stream->established(); }));
  const auto data = random_bytes(1, 1U << 20);
  test::no_memory_from = 64U << 10;
  const Stream::Moved moved = a.stream->write(std::span<const std::byte>(data));
  test::no_memory_from = test::kNoLimit;
  EXPECT_EQ(moved.outcome, Outcome::failed);
  EXPECT_EQ(moved.error, "no memory");
  EXPECT_FALSE(a.stream->refused());
}

TEST(TlsStream, an_end_may_be_destroyed_when_it_is_told_that_it_is_ready) {
  Loop loop;
  const Secret key = random_secret();
  auto [near, far] = socket_pair(loop);
  TlsEnd a;
  a.sends = test::bytes_of("hello");
  a.shuts = false;
  a.use(TlsStream::dial(loop, std::move(near), kIdentity, key));
  auto b = TlsStream::accept(loop, std::move(far), knows(key));
  b->on_ready([&](bool, bool) { b.reset(); });
  b->want(true, true);
  ASSERT_TRUE(test::poll_until(loop, [&] { return a.over(); }));
  EXPECT_EQ(b, nullptr);
}

}  // namespace
}  // namespace pccl
