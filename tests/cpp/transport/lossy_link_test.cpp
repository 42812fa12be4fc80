// Two ends of a link whose connections are lost, stuck and slow as a seed says: every segment
// arrives once and as it was sent, its sender is told once, and no memory is touched that is not
// the link's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/assert.h"
#include "base/limits.h"
#include "base/random.h"
#include "played_connection.h"
#include "support.h"
#include "transport/link.h"
#include "transport/stream_lane.h"
#include "transport/tls_stream.h"

namespace pccl {
namespace {

using test::PlayedConnection;

/// What segment `id` carries: bytes that differ from those of other segments and of other places.
/// They lie ready: made and compared one by one they were most of the time of these tests under a
/// sanitizer.
const std::byte* bytes_of_segment(std::uint64_t id, std::size_t bytes) {
  constexpr std::size_t kMost = 12 * kSliceBytes;
  constexpr std::size_t kShifts = 4099;
  static const std::vector<std::byte> made = [] {
    std::vector<std::byte> all(kMost + kShifts);
    Random random(7);
    for (std::byte& byte : all) byte = static_cast<std::byte>(random.below(256));
    return all;
  }();
  PCCL_ASSERT(bytes <= kMost, bytes);
  return made.data() + id % kShifts;
}

/// One end. Memory of each segment is a block of its own, freed as soon as its owner may free it: a
/// sanitizer sees each later touch.
struct LossyEnd : LinkOwner, DirectEvents {
  explicit LossyEnd(std::uint64_t peer) : link(*this, {PeerId{peer}, {}, {}}, 1) {}

  void send(std::uint64_t id, std::size_t bytes) {
    const std::byte* const made = bytes_of_segment(id, bytes);
    const auto& payload = going[id] = std::make_unique<std::vector<std::byte>>(made, made + bytes);
    SegmentHeader header;
    header.op.step = id;
    header.bytes = static_cast<std::uint32_t>(bytes);
    link.send_segment(header, payload->data(), id, id);
  }
  void cancel(std::uint64_t token) {
    link.cancel(token);
    if (going.erase(token) > 0) cancelled.insert(token);
    if (coming.erase(token) > 0) dropped.insert(token);
  }
  /// What the owner does when it hears of what was sent, a round of the loop later.
  void free_told() {
    for (const std::uint64_t id : told_now) going.erase(id);
    told_now.clear();
  }

  DirectEvents& link_events() override { return *this; }
  void link_sent(const Link&, const Outgoing& frame) override {
    if (!frame.tells) return;
    EXPECT_TRUE(told.insert(frame.cookie).second) << frame.cookie;
    EXPECT_FALSE(cancelled.contains(frame.cookie));
    told_now.push_back(frame.cookie);
  }
  void link_received(std::size_t, bool) override {}
  void link_lost(Link& ended, const std::string& reason) override {
    lost = reason;
    ended.end();
  }
  void link_lacks(Link&) override { ++lacks; }
  void link_closed(Link&) override {}
  void link_up(PeerId) override {}
  void link_down(PeerId, const std::string&, Down) override {}
  void control_arrived(PeerId, std::span<const std::byte> payload) override {
    EXPECT_EQ(test::text_of(payload), std::to_string(heard));
    ++heard;
  }
  void relay_arrived(PeerId, std::span<const std::byte>) override {}
  Placement segment_header(PeerId, const SegmentHeader& header) override {
    const std::uint64_t id = header.op.step;
    EXPECT_TRUE(asked.insert(id).second) << "asked twice for " << id;
    auto& memory = coming[id] = std::make_unique<std::vector<std::byte>>(header.bytes);
    return {memory->data(), id, id};
  }
  void segment_arrived(PeerId, const SegmentHeader& header, const Placement& at) override {
    const std::uint64_t id = header.op.step;
    EXPECT_EQ(at.cookie, id);
    ASSERT_TRUE(coming.contains(id)) << "twice, or after its end: " << id;
    const auto& memory = *coming[id];
    const std::byte* const made = bytes_of_segment(id, memory.size());
    if (std::memcmp(memory.data(), made, memory.size()) != 0) {
      FAIL() << "byte " << std::mismatch(memory.begin(), memory.end(), made).first - memory.begin()
             << " of " << id;
    }
    coming.erase(id);
    EXPECT_TRUE(arrived.insert(id).second);
    // The other end's owner hears of that (a result comes back), and writes to its memory, though
    // lanes may still have to send of it what has arrived by others.
    const auto sent = other->going.find(id);
    if (sent != other->going.end()) std::memset(sent->second->data(), 0xEE, sent->second->size());
  }
  void segment_sent(PeerId, std::uint64_t) override {}
  void routed_sent(PeerId, MemoryToken, std::uint64_t) override {}

  LossyEnd* other = nullptr;
  Link link;
  std::map<std::uint64_t, std::unique_ptr<std::vector<std::byte>>> going, coming;
  std::set<std::uint64_t> told, cancelled, asked, arrived, dropped;
  std::vector<std::uint64_t> told_now;
  std::uint64_t said = 0;   // messages
  std::uint64_t heard = 0;  // of the other end
  int lacks = 0;
  std::string lost;
};

struct Play {
  Play(std::uint64_t seed, bool encrypted_, std::size_t threads = 1)
      : random(seed), encrypted(encrypted_), loop(threads) {
    a.other = &b;
    b.other = &a;
    room = std::size_t{1} << (12 + random.below(9));
    for (std::size_t i = 0; i < 2 + random.below(5); ++i) dial();
    for (LossyEnd* end : {&a, &b}) {
      end->link.state = Link::State::up;
      end->link.use(2 + random.below(5));
      end->link.start();
    }
  }
  ~Play() {
    a.link.end();
    b.link.end();
  }
  /// One more lane; the first one is small, and is never lost.
  void dial() {
    connections.push_back(std::make_unique<PlayedConnection>(loop, room));
    const bool small = connections.size() == 1;
    const auto kind = small ? Lane::Kind::small : Lane::Kind::bulk;
    const bool crc = random.below(2) == 0;
    const std::size_t dialler = random.below(2);
    ends_of_a.push_back(dialler);
    LossyEnd& near = dialler == 0 ? a : b;
    LossyEnd& far = dialler == 0 ? b : a;
    auto [dialled, accepted] = streams();
    auto here = std::make_unique<StreamLane>(loop, near.link, kind, std::move(dialled), crc);
    auto there = std::make_unique<StreamLane>(loop, far.link, kind, std::move(accepted), crc);
    if (small) {
      near.link.attach(std::move(here));
      far.link.attach(std::move(there));
    } else if (near.link.room() > 0 && far.link.room() > 0) {
      far.link.await(std::move(there));
      near.link.join(std::move(here));
    }
  }
  /// The ends of the newest connection.
  std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>> streams() {
    PlayedConnection& at = *connections.back();
    if (!encrypted) return {at.end(0), at.end(1)};
    const Secret key = {};
    auto dialled = TlsStream::dial(loop, at.end(0), "test", key);
    auto accepted =
        TlsStream::accept(loop, at.end(1), [key](std::string_view) { return std::optional(key); });
    while (!dialled->established() || !accepted->established()) {
      at.deliver(0, 1U << 20);
      at.deliver(1, 1U << 20);
      run();
    }
    return {std::move(dialled), std::move(accepted)};
  }
  void run() {
    static_cast<void>(loop.run_once(false));
    a.free_told();
    b.free_told();
  }
  void move() {
    PlayedConnection& at = *connections[random.below(connections.size())];
    at.deliver(random.below(2), std::size_t{1} << random.below(18));
  }
  void step() {
    LossyEnd& end = random.below(2) == 0 ? a : b;
    switch (random.below(24)) {
      case 0:
        return end.send(++ids, kSmallSegmentBytesMax + 1 + random.below(4 * kSliceBytes));
      case 1:
        return end.send(++ids, 1 + random.below(kSmallSegmentBytesMax));
      case 2:
        end.link.send_message(FrameType::control, test::bytes_of(std::to_string(end.said++)));
        return;
      case 3:
        if (random.below(3) == 0) end.cancel(1 + random.below(ids + 1));
        return;
      case 4:
      case 5:
        return end.link.mend(now_ms += random.below(300));
      case 6:
        if (random.below(3) > 0 || connections.size() < 2) return;
        return connections[1 + random.below(connections.size() - 1)]->lose();
      case 7:
        if (connections.size() < 12 && random.below(2) == 0) dial();
        return;
      case 8:
        if (random.below(4) == 0) end.link.use(2 + random.below(5));
        return;
      case 9: {
        PlayedConnection& at = *connections[random.below(connections.size())];
        if (at.lost()) at.fail(random.below(2));
        return;
      }
      default:
        return move();
    }
  }
  /// Nothing new is lost, and what is lost is heard of.
  [[nodiscard]] bool settle() {
    for (int round = 0; round < 4000; ++round) {
      for (const auto& at : connections) {
        for (const std::size_t from : {0U, 1U}) {
          if (at->lost()) at->fail(from);
          at->deliver(from, 1U << 20);
        }
      }
      run();
      if (round % 10 == 0) {
        a.link.mend(now_ms += 50);
        b.link.mend(now_ms);
      }
      if (done(a, b) && done(b, a)) return true;
    }
    return false;
  }
  [[nodiscard]] static bool done(const LossyEnd& from, const LossyEnd& to) {
    return from.going.empty() && to.coming.empty() && to.heard == from.said &&
           from.link.queued_bytes() == 0 &&
           std::all_of(from.told.begin(), from.told.end(), [&](std::uint64_t id) {
             return to.arrived.contains(id) || to.dropped.contains(id);
           });
  }

  [[nodiscard]] std::string state() const {
    std::string text;
    for (const LossyEnd* end : {&a, &b}) {
      text += std::to_string(end->going.size()) + " go, " + std::to_string(end->coming.size()) +
              " come, " + std::to_string(end->heard) + " of " + std::to_string(end->said) +
              " heard, " + std::to_string(end->link.queued_bytes()) + " bytes queued, " +
              std::to_string(end->link.bulk_lanes()) + " lanes, lost: " + end->lost + "; ";
    }
    return text;
  }

  Random random;
  bool encrypted;
  Loop loop;
  std::vector<std::unique_ptr<PlayedConnection>> connections;
  std::vector<std::size_t> ends_of_a;
  LossyEnd a{2};
  LossyEnd b{1};
  std::size_t room = 0;
  std::uint64_t ids = 0;
  std::uint64_t now_ms = 1000;
};

#ifdef __SANITIZE_THREAD__
constexpr std::uint64_t kSeeds = 16;  // it is slow
constexpr std::size_t kThreads[] = {3};
#else
constexpr std::uint64_t kSeeds = 160;
constexpr std::size_t kThreads[] = {1, 3};
#endif

/// Of the loop; with several the lanes of both ends move their bytes at the same time.
class LossyLink : public testing::TestWithParam<std::size_t> {};

TEST_P(LossyLink, loses_no_segment_and_touches_no_memory_of_others) {
  std::uint64_t lost = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Play play(seed, /*encrypted=*/seed % 2 == 0, GetParam());
    for (int i = 0; i < 600; ++i) {
      play.step();
      if (play.random.below(3) == 0) play.run();
    }
    ASSERT_TRUE(play.settle()) << "seed " << seed << ": " << play.state();
    for (const LossyEnd* from : {&play.a, &play.b}) {
      ASSERT_EQ(from->lost, "") << "seed " << seed;
      EXPECT_EQ(from->link.load().lanes, from->link.bulk_lanes()) << "no lane is late any more";
      lost += from->link.view().lanes_lost;
    }
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(lost, kSeeds * 3 / 2);
}

INSTANTIATE_TEST_SUITE_P(Threads, LossyLink, testing::ValuesIn(kThreads));

/// A link with four bulk lanes whose line carries 4 Mbit/s, over one connection after the other;
/// those from `dead` on bring nothing over.
struct SlowLine : Play {
  SlowLine() : Play(1, false) {
    while (connections.size() < 5) dial();
    a.link.use(4);
  }
  void look(std::size_t dead) {
    std::size_t carries = 25'000;  // in 50 ms
    for (std::size_t idle = 0; carries > 0 && idle < connections.size();) {
      const std::size_t place = next++ % connections.size();
      connections[place]->deliver(1 - ends_of_a[place], 1U << 20);
      const std::size_t before = a.link.load().delivered;
      const std::size_t some = place < dead ? std::min<std::size_t>(2500, carries) : 0;
      connections[place]->deliver(ends_of_a[place], some);
      const std::size_t moved = a.link.load().delivered - before;
      idle = moved > 0 ? 0 : idle + 1;
      carries -= moved;
    }
    for (int i = 0; i < 10; ++i) run();
    a.link.mend(now_ms += 50);
  }
  /// Milliseconds until all that was sent has arrived.
  std::uint64_t arrives(std::size_t dead = kLanesMax) {
    const std::uint64_t began_ms = now_ms;
    while (!done(a, b) && now_ms < began_ms + 120'000) look(dead);
    return now_ms - began_ms;
  }
  std::size_t next = 0;
};

TEST(SlowLink, each_idle_lane_takes_a_slice_before_one_takes_a_second) {
  for (const std::size_t threads : {1U, 2U}) {  // two of which serve four lanes at once
    Play play(1, /*encrypted=*/false, threads);
    play.room = 256U << 10;
    while (play.connections.size() < 13) play.dial();
    play.a.link.use(12);
    for (int i = 0; i < 20; ++i) {
      for (const auto& at : play.connections) at->deliver(0, 1U << 20), at->deliver(1, 1U << 20);
      play.run();
    }
    play.a.send(++play.ids, 12 * kSliceBytes);
    for (int i = 0; i < 5; ++i) play.run();
    std::size_t carry = 0;
    for (std::size_t i = 1; i < play.connections.size(); ++i) {
      if (play.connections[i]->under_way(play.ends_of_a[i]) > 1000) ++carry;
    }
    EXPECT_EQ(carry, 12U) << threads;
  }
}

TEST(SlowLink, sends_nothing_twice_only_because_the_line_is_slow) {
  SlowLine line;
  std::uint64_t bytes = 0;
  for (int call = 0; call < 3; ++call) {
    for (int i = 0; i < 4; ++i) line.a.send(++line.ids, 4 * kSliceBytes);
    bytes += 16 * kSliceBytes;
    EXPECT_LT(line.arrives(), 5'000U);
    // Of the first call's end the rate is not known when it begins.
    EXPECT_LE(line.a.link.view().bytes_sent, bytes + 2 * kSliceBytes) << call;
  }
}

TEST(SlowLink, waits_no_minute_for_lanes_that_are_dead) {
  SlowLine line;
  line.a.send(++line.ids, 8 * kSliceBytes);
  EXPECT_LT(line.arrives(), 5'000U);
  for (const std::size_t dead : {4U, 3U, 2U}) {  // one of the four, two, three
    for (int i = 0; i < 3; ++i) line.a.send(++line.ids, 4 * kSliceBytes);
    EXPECT_LT(line.arrives(dead), 5'000U) << dead;
    EXPECT_LT(line.arrives(), 5'000U);
  }
}

}  // namespace
}  // namespace pccl
