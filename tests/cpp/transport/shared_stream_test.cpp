// A stream through shared memory, between two loops on threads of their own, as two processes are.
#include "transport/shared_stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/random.h"
#include "shared_ends.h"
#include "support.h"
#include "transport/fd_registry.h"
#include "transport/local_socket.h"
#include "transport/shared_memory.h"
#include "transport/stream_lane.h"

namespace pccl {
namespace {

using Outcome = Stream::Outcome;
using test::BothEnds;
using test::Ends;
using test::kStreamRing;
using test::LyingEnd;
using test::offer_of;
/// Many turns of a ring, and few enough for ThreadSanitizer, which takes 100 ns a byte.
constexpr std::size_t kExchanged = 4U << 20;

std::byte at(std::size_t index) { return static_cast<std::byte>(index * 7 >> 2); }

/// Sends and receives `bytes` bytes in pieces of chance, both at once, until both are done.
void exchange(Loop& loop, Stream& stream, std::size_t bytes, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> out(300000);
  std::vector<std::byte> in(300000);
  std::size_t sent = 0;
  std::size_t got = 0;
  std::size_t wrong = 0;
  std::string failure;
  stream.on_ready([&](bool readable, bool writable) {
    if (writable && sent < bytes) {
      const std::size_t size = std::min(1 + random.below(out.size()), bytes - sent);
      for (std::size_t i = 0; i < size; ++i) out[i] = at(sent + i);
      const std::size_t half = size / 2;
      const iovec parts[] = {{out.data(), half}, {out.data() + half, size - half}};
      const Stream::Moved moved = stream.write(parts);
      if (moved.outcome == Outcome::failed) failure = moved.error;
      sent += moved.bytes;
    }
    if (readable) {
      const std::size_t size = 1 + random.below(in.size());
      const Stream::Moved moved = stream.read(std::span(in).first(size));
      if (moved.outcome == Outcome::failed) failure = moved.error;
      for (std::size_t i = 0; i < moved.bytes; ++i) wrong += in[i] == at(got + i) ? 0U : 1U;
      got += moved.bytes;
    }
    stream.want(got < bytes, sent < bytes);
  });
  stream.want(true, true);
  // A poll: no bell tells that the other side has taken the last bytes.
  EXPECT_TRUE(test::poll_until(loop, [&] {
    return !failure.empty() ||
           (sent == bytes && got == bytes && stream.unacknowledged_bytes() == 0);
  }));
  EXPECT_EQ(failure, "");
  EXPECT_EQ(wrong, 0U);
  stream.on_ready(nullptr);
}

TEST(SharedStream, megabytes_pass_both_ways_at_once_between_two_threads) {
  Ends ends;
  std::thread other([&] {
    Loop loop;
    const auto stream = ends.acceptor(loop);
    exchange(loop, *stream, kExchanged, 1);
    EXPECT_EQ(stream->carrier(), Stream::Carrier::shared_memory);
  });
  Loop loop;
  const auto stream = ends.dialler(loop);
  exchange(loop, *stream, kExchanged, 2);
  EXPECT_EQ(stream->carrier(), Stream::Carrier::shared_memory);
  other.join();
}

/// Each message waits for the one before, so both loops sleep all the time: a wake-up that is lost
/// stops the test.
TEST(SharedStream, no_wake_up_is_lost) {
  constexpr int kMessages = 5000;
  Ends ends;
  const auto play = [](Loop& loop, Stream& stream, bool serves) {
    int left = kMessages;
    std::byte ball{};
    if (serves) {
      stream.on_ready([&](bool, bool) { stream.want(false, false); });
      stream.want(false, true);
      EXPECT_TRUE(test::run_until(loop, [&] { return stream.write({&ball, 1}).bytes == 1; }));
    }
    stream.on_ready([&](bool, bool) {
      if (stream.read(std::span(&ball, 1)).bytes == 0) return;
      if (--left > 0 || !serves) {
        EXPECT_EQ(stream.write({&ball, 1}).bytes, 1U);
      }
    });
    stream.want(true, false);
    EXPECT_TRUE(test::run_until(loop, [&] { return left == 0; }));
    stream.on_ready(nullptr);
    EXPECT_TRUE(test::poll_until(loop, [&] { return stream.unacknowledged_bytes() == 0; }));
  };
  std::thread other([&] {
    Loop loop;
    const auto stream = ends.acceptor(loop);
    play(loop, *stream, false);
  });
  Loop loop;
  const auto stream = ends.dialler(loop);
  play(loop, *stream, true);
  other.join();
}

TEST(SharedStream, what_was_written_before_the_end_is_read_before_the_end) {
  for (const bool closes : {false, true}) {
    BothEnds pair;
    ASSERT_TRUE(pair.until([&] { return pair.can_write[0] && pair.can_write[1]; }));
    const std::vector<std::byte> bytes(1000, std::byte{5});
    ASSERT_EQ(pair.ends[0]->write(bytes).bytes, bytes.size());
    if (closes) {
      pair.ends[0]->close();
    } else {
      pair.ends[0]->shut();
    }
    ASSERT_TRUE(pair.until([&] { return pair.can_read[1]; }));
    std::array<std::byte, 600> some;
    EXPECT_EQ(pair.ends[1]->peek(some).bytes, some.size());
    EXPECT_EQ(pair.ends[1]->read(some).bytes, some.size());
    EXPECT_EQ(pair.ends[1]->read(some).bytes, bytes.size() - some.size());
    pair.can_read[1] = false;
    pair.ends[1]->want(true, false);
    ASSERT_TRUE(pair.until([&] { return pair.can_read[1]; }));
    EXPECT_EQ(pair.ends[1]->read(some).outcome, Outcome::ended);
    EXPECT_EQ(pair.ends[1]->peek(some).outcome, Outcome::ended);
    if (!closes) {
      EXPECT_EQ(pair.ends[1]->write(bytes).bytes, bytes.size()) << "the other way is open";
    }
  }
}

TEST(SharedStream, the_death_of_the_other_process_ends_it) {
  Ends ends;
  int heard[2];
  ASSERT_EQ(::pipe(heard), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(ends.fds[0]);
    Loop loop;
    const auto stream = ends.acceptor(loop);
    std::array<std::byte, 16> in;
    stream->on_ready([&](bool, bool) {
      static_cast<void>(stream->read(in));
      static_cast<void>(stream->write(in));
      const ssize_t told = ::write(heard[1], "x", 1);
      if (told == 1) ::pause();
    });
    stream->want(true, false);
    while (true) loop.run_once(true);
  }
  ::close(ends.fds[1]);
  Loop loop;
  const auto stream = ends.dialler(loop);
  bool ready = false;
  stream->on_ready([&](bool, bool) {
    ready = true;
    stream->want(false, false);
  });
  stream->want(false, true);
  ASSERT_TRUE(test::run_until(loop, [&] { return ready; }));
  const std::vector<std::byte> bytes(16);
  ASSERT_EQ(stream->write(bytes).bytes, bytes.size());
  char x = 0;
  ASSERT_EQ(::read(heard[0], &x, 1), 1);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  std::array<std::byte, 32> in;
  std::size_t got = 0;
  Outcome last = Outcome::moved;
  stream->on_ready([&](bool, bool) {
    const Stream::Moved moved = stream->read(in);
    got += moved.bytes;
    last = moved.outcome;
    stream->want(last == Outcome::moved, false);
  });
  stream->want(true, false);
  EXPECT_TRUE(test::run_until(loop, [&] { return last == Outcome::ended; }));
  EXPECT_EQ(got, 16U) << "what it wrote before it died";
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  ::close(heard[0]);
  ::close(heard[1]);
}

TEST(SharedStream, without_memory_the_bytes_go_over_the_socket) {
  BothEnds pair(2 * kRingBytesMax);  // there is no such memory
  ASSERT_TRUE(pair.until([&] { return pair.can_write[0] && pair.can_write[1]; }));
  for (const auto& end : pair.ends) EXPECT_EQ(end->carrier(), Stream::Carrier::unix_socket);
  const std::vector<std::byte> bytes(1000, std::byte{5});
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(pair.ends[i]->write(bytes).bytes, bytes.size());
    pair.can_read[1 - i] = false;
    pair.ends[1 - i]->want(true, false);
    ASSERT_TRUE(pair.until([&] { return pair.can_read[1 - i]; }));
    std::array<std::byte, 2000> in;
    EXPECT_EQ(pair.ends[1 - i]->read(in).bytes, bytes.size());
  }
}

TEST(SharedStream, an_offer_that_is_none_is_refused_and_the_socket_goes_on) {
  const int file = ::open("/dev/zero", O_RDWR | O_CLOEXEC);
  for (const int passed : {file, -1}) {
    LyingEnd liar;
    liar.watch(liar.acceptor(liar.loop));
    const auto offer = offer_of(kStreamRing);
    if (passed >= 0) {
      ASSERT_EQ(send_with_descriptor(liar.fds[0], offer, passed), 8);
    } else {
      ASSERT_EQ(::send(liar.fds[0], offer.data(), offer.size(), 0), 8);
    }
    std::array<std::byte, 8> answer{};
    ASSERT_TRUE(test::poll_until(liar.loop, [&] {
      return ::recv(liar.fds[0], answer.data(), answer.size(), MSG_DONTWAIT) == 8;
    }));
    EXPECT_EQ(answer[0], std::byte{2});
    ASSERT_EQ(::send(liar.fds[0], "hello", 5, 0), 5);
    EXPECT_TRUE(liar.ends_with(Outcome::moved));
    ::close(liar.fds[0]);
  }
  ::close(file);
}

TEST(SharedStream, one_that_breaks_off_in_the_beginning_ends_it) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{3}}) {
    for (const bool accepts : {true, false}) {
      LyingEnd liar;
      const int other = accepts ? liar.fds[0] : liar.fds[1];
      liar.watch(accepts ? liar.acceptor(liar.loop) : liar.dialler(liar.loop));
      const auto offer = offer_of(kStreamRing);
      if (bytes > 0) {
        ASSERT_EQ(::send(other, offer.data(), bytes, 0), 3);
      }
      ::close(other);
      EXPECT_TRUE(liar.ends_with(Outcome::failed));
      EXPECT_NE(liar.error, "");
    }
  }
}

TEST(SharedStream, counts_that_cannot_be_end_it_and_nothing_else) {
  LyingEnd liar;
  liar.watch(liar.acceptor(liar.loop));
  SharedMemory memory = std::move(SharedMemory::make(kStreamRing)).value();
  ASSERT_EQ(send_with_descriptor(liar.fds[0], offer_of(kStreamRing), memory.descriptor()), 8);
  RingWriter writer = memory.writer();
  const std::vector<std::byte> bytes(kStreamRing);
  writer.write(bytes);
  writer.write(std::span(bytes).first(1));
  EXPECT_TRUE(liar.ends_with(Outcome::failed));
  EXPECT_NE(liar.error.find("cannot be"), std::string::npos) << liar.error;
  EXPECT_EQ(liar.stream->write(bytes).outcome, Outcome::failed);
  ::close(liar.fds[0]);
}

TEST(SharedStream, an_end_that_came_before_anybody_wanted_to_read_is_told_at_once) {
  BothEnds pair;
  ASSERT_TRUE(pair.until([&] { return pair.can_write[0] && pair.can_write[1]; }));
  pair.ends[1]->want(false, false);
  pair.ends[0]->close();
  ASSERT_TRUE(test::poll_until(pair.loop, [&] {
    std::byte byte{};
    return pair.ends[1]->read(std::span(&byte, 1)).outcome == Outcome::ended;
  }));
  bool late = false;
  const auto timer = pair.loop.timer(test::kTestMs, 0, [&] { late = true; });
  // Wanted by a deferred function, when the loop has looked already: nothing else wakes it.
  pair.loop.defer([&] { pair.ends[1]->want(true, false); });
  while (!pair.can_read[1] && !late) pair.loop.run_once(true);
  EXPECT_FALSE(late);
}

TEST(SharedStream, a_forked_child_unmaps_nothing_of_its_own) {
  for (const bool offered : {true, false}) {
    const auto own = std::move(OwnArea::make()).value();
    BothEnds pair;
    for (const auto& end : pair.ends) end->lend(own);
    if (!offered) {
      ASSERT_TRUE(pair.until([&] { return pair.can_write[0] && pair.can_write[1]; }));
    }
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      pair.loop.registry().close_in_child();
      // All of the holes that the memory has left are filled, then the streams end.
      std::vector<unsigned char*> pages;
      for (int i = 0; i < 64; ++i) {
        void* const here =
            ::mmap(nullptr, 64U << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        pages.push_back(static_cast<unsigned char*>(here));
      }
      for (const auto& end : pair.ends) end->close();
      for (unsigned char* page : pages) page[0] = 1;
      ::_exit(0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST(SharedStream, where_the_memory_cannot_be_passed_the_bytes_go_over_the_socket) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // A user may have so many descriptors under way as it may have open.
    const rlimit few{64, 64};
    if (::setrlimit(RLIMIT_NOFILE, &few) != 0 || ::setresuid(65534, 65534, 65534) != 0) ::_exit(1);
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, fds) != 0) ::_exit(2);
    int other[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, other) != 0) ::_exit(3);
    const auto offer = offer_of(0);
    while (send_with_descriptor(other[0], offer, fds[0]) > 0) {
    }
    if (errno != ETOOMANYREFS) ::_exit(4);
    BothEnds pair;
    const bool done = pair.until([&] { return pair.can_write[0] && pair.can_write[1]; });
    const bool plain = pair.ends[0]->carrier() == Stream::Carrier::unix_socket &&
                       pair.ends[1]->carrier() == Stream::Carrier::unix_socket;
    ::_exit(done && plain ? 0 : 5);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

/// Keeps what arrives; takes the payloads of segments in parts where it may.
struct PartsOwner : LaneOwner {
  void lane_message(FrameType, std::span<const std::byte> payload) override {
    messages.push_back(test::text_of(payload));
  }
  Placement lane_segment_header(const SegmentHeader& header) override {
    in_place = in_place && header.in_place;
    if (header.channel == 1) return {nullptr, kToken, 0, /*in_parts=*/true};
    if (header.channel == 2) return {};
    copied.resize(header.bytes);
    return {copied.data(), kToken, 0};
  }
  void lane_part(const SegmentHeader&, const Placement& placed, std::uint32_t offset,
                 std::span<const std::byte> bytes) override {
    EXPECT_TRUE(placed.in_parts);
    EXPECT_EQ(offset, parts.size() - parts_begin);
    EXPECT_EQ(offset % 16, 0U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes.data()) % 16, 0U);
    parts.insert(parts.end(), bytes.begin(), bytes.end());
    if (on_part) on_part();
  }
  void lane_segment(const SegmentHeader& header, const Placement&) override {
    if (header.channel == 1) parts_begin = parts.size();
    ++segments;
  }
  void lane_received(std::size_t bytes, bool) override { received += bytes; }
  void lane_sent(const Outgoing&) override {}
  void lane_joined(Lane&) override {}
  std::optional<Outgoing> lane_next(const Lane&) override { return std::nullopt; }
  void lane_over(Lane&, const std::string& reason, bool) override { over = reason; }
  void lane_lost(Lane&, const std::string& reason, Leftover) override { over = reason; }
  void lane_closed(Lane&) override {}

  static constexpr MemoryToken kToken = 7;
  bool in_place = true;
  std::vector<std::byte> parts;
  std::size_t parts_begin = 0;  // of the segment that arrives
  std::vector<std::byte> copied;
  std::vector<std::string> messages;
  std::size_t received = 0;
  int segments = 0;
  std::string over;
  std::function<void()> on_part;
};

/// Two lanes through shared memory, on one loop.
struct Lanes : Ends {
  explicit Lanes(bool crc = false)
      : sender(loop, out, Lane::Kind::small, dialler(loop), crc),
        receiver(loop, in, Lane::Kind::small, acceptor(loop), false) {
    sender.start();
    receiver.start();
  }
  void send(std::uint32_t channel, std::span<const std::byte> payload) {
    Outgoing frame;
    frame.frame.type = FrameType::segment;
    frame.frame.payload_bytes = static_cast<std::uint32_t>(payload.size());
    frame.frame.segment.channel = channel;
    frame.frame.segment.bytes = frame.frame.payload_bytes;
    frame.payload = payload.data();
    frame.tells = true;
    sender.send(std::move(frame));
  }
  void say(const std::string& text) {
    Outgoing frame;
    frame.owned = test::bytes_of(text);
    frame.frame.payload_bytes = static_cast<std::uint32_t>(frame.owned.size());
    frame.payload = frame.owned.data();
    sender.send(std::move(frame));
  }
  bool until(const std::function<bool()>& done) { return test::run_until(loop, done); }
  Loop loop;
  PartsOwner out, in;
  StreamLane sender, receiver;
};

TEST(SharedLane, payloads_are_shown_where_they_lie_whatever_comes_between) {
  Lanes lanes;
  std::vector<std::byte> payload(5 * kStreamRing + 6);
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = at(i);
  const auto all = std::span<const std::byte>(payload);
  std::vector<std::byte> shown;
  std::size_t bytes = 0;
  for (const std::size_t size : {payload.size(), std::size_t{1}, std::size_t{17}, std::size_t{0},
                                 std::size_t{100000}, payload.size()}) {
    lanes.send(1, all.first(size));
    shown.insert(shown.end(), payload.begin(), payload.begin() + static_cast<long>(size));
    lanes.say("odd");  // from now on payloads begin anywhere in memory
    lanes.send(0, all.first(size));
    lanes.send(2, all.first(size));
    bytes += 3 * size + 3;
  }
  ASSERT_TRUE(lanes.until([&] { return lanes.in.received == bytes; }));
  EXPECT_TRUE(lanes.in.in_place);
  EXPECT_EQ(lanes.in.parts, shown);
  EXPECT_EQ(lanes.in.copied, payload);
  EXPECT_EQ(lanes.in.messages, std::vector<std::string>(6, "odd"));
  EXPECT_EQ(lanes.in.segments, 12);
  EXPECT_EQ(lanes.in.over, "");
}

TEST(SharedLane, the_rest_of_a_payload_is_dropped_when_its_memory_is_taken_away) {
  Lanes lanes;
  const std::vector<std::byte> payload(5 * kStreamRing, std::byte{3});
  lanes.in.on_part = [&] {
    lanes.in.on_part = nullptr;
    static_cast<void>(lanes.receiver.cancel(PartsOwner::kToken));
  };
  lanes.send(1, payload);
  lanes.send(0, payload);
  ASSERT_TRUE(lanes.until([&] { return lanes.in.received == 2 * payload.size(); }));
  EXPECT_LT(lanes.in.parts.size(), payload.size());
  EXPECT_EQ(lanes.in.copied, payload);
  EXPECT_EQ(lanes.in.segments, 1);
}

TEST(SharedLane, an_owner_may_end_the_lane_in_the_middle_of_a_payload) {
  Lanes lanes;
  const std::vector<std::byte> payload(5 * kStreamRing);
  lanes.in.on_part = [&] { lanes.receiver.end(); };
  lanes.send(1, payload);
  ASSERT_TRUE(lanes.until([&] { return !lanes.out.over.empty(); }));
  EXPECT_FALSE(lanes.receiver.open());
  EXPECT_EQ(lanes.in.segments, 0);
}

TEST(SharedLane, a_payload_with_a_checksum_is_not_used_before_all_of_it_has_come) {
  Lanes lanes(/*crc=*/true);
  const std::vector<std::byte> payload(1000, std::byte{3});
  lanes.send(0, payload);
  ASSERT_TRUE(lanes.until([&] { return lanes.in.segments == 1; }));
  EXPECT_FALSE(lanes.in.in_place);
}

TEST(SharedLane, the_death_of_the_sender_in_the_middle_of_a_payload_ends_it) {
  Lanes lanes;
  const std::vector<std::byte> payload(5 * kStreamRing);
  lanes.in.on_part = [&] { lanes.sender.end(); };
  lanes.send(1, payload);
  ASSERT_TRUE(lanes.until([&] { return !lanes.in.over.empty(); }));
  EXPECT_EQ(lanes.in.segments, 0);
}

TEST(SharedLane, a_number_that_is_cut_in_two_ends_it) {
  LyingEnd liar;
  SharedMemory memory = std::move(SharedMemory::make(kStreamRing)).value();
  PartsOwner owner;
  StreamLane lane(liar.loop, owner, Lane::Kind::bulk, liar.acceptor(liar.loop), false);
  lane.start();
  ASSERT_EQ(send_with_descriptor(liar.fds[0], offer_of(kStreamRing), memory.descriptor()), 8);
  FrameHeader frame;
  frame.type = FrameType::segment;
  frame.payload_bytes = frame.segment.bytes = 64;
  frame.segment.channel = 1;
  HeaderBytes bytes;
  const std::size_t size = encode_frame_header(frame, bytes);
  RingWriter writer = memory.writer();
  writer.write(std::span(bytes).first(size));
  writer.write(std::span(bytes).first(7));
  EXPECT_TRUE(test::run_until(liar.loop, [&] { return !owner.over.empty(); }));
  EXPECT_NE(owner.over.find("a part of a number"), std::string::npos) << owner.over;
  EXPECT_TRUE(owner.parts.empty());
  ::close(liar.fds[0]);
}

}  // namespace
}  // namespace pccl
