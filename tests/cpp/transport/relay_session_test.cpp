// An end of relayed links over direct links that the test plays: what is left of an earlier relayed
// link to the same peer does not count for the one that is up, and is not told.
#include <gtest/gtest.h>

#include "recorder.h"
#include "support.h"
#include "transport/direct_links.h"
#include "transport/relay_message.h"

namespace pccl {
namespace {

constexpr PeerId kSelf{1};
constexpr PeerId kBetween{2};
constexpr PeerId kOther{3};

/// A direct link to the peer in between; keeps the relay messages that are sent over it.
class PlayedLinks final : public DirectLinks {
 public:
  explicit PlayedLinks(DirectEvents& events) : events_(events) {}

  [[nodiscard]] std::uint16_t port() const override { return 1; }
  [[nodiscard]] PeerId self() const override { return kSelf; }
  [[nodiscard]] const PublicKey& key() const override { return key_; }
  void open(const Handle&, std::uint64_t, bool) override {}
  void close(PeerId) override {}
  void drop(PeerId) override {}
  void give_up(PeerId, const std::string& reason) override { FAIL() << reason; }
  [[nodiscard]] bool is_up(PeerId peer) const override { return peer == kBetween; }
  void widen(PeerId, std::size_t) override {}
  void send_control(PeerId, std::vector<std::byte>) override {}
  void send_segment(PeerId, const SegmentHeader&, const std::byte*, MemoryToken,
                    std::uint64_t) override {}
  void cancel(MemoryToken) override {}
  [[nodiscard]] std::uint64_t bytes_sent() const override { return 0; }
  [[nodiscard]] std::uint64_t bytes_received() const override { return 0; }
  [[nodiscard]] std::uint64_t segment_bytes_received() const override { return 0; }
  [[nodiscard]] std::size_t queued_bytes(PeerId) const override { return 0; }
  [[nodiscard]] std::size_t queued_message_bytes(PeerId) const override { return 0; }
  void shutdown(std::uint64_t, std::function<void()> done) override { done(); }
  void send_relay(PeerId, std::vector<std::byte> payload) override {
    const RelayMessage message = decode_relay(payload).value();
    if (message.kind == RelayKind::open) session = message.session;
  }

  /// What the other end says, by way of the peer in between.
  void hear(RelayKind kind, std::uint64_t to_session, std::uint64_t number) {
    events_.relay_arrived(kBetween, encode_relay({kind, kOther, kSelf, to_session, number, {}}));
  }
  Placement begin(const SegmentHeader& header) { return events_.segment_header(kBetween, header); }
  void arrive(const SegmentHeader& header, const Placement& at) {
    events_.segment_arrived(kBetween, header, at);
  }

  std::uint64_t session = 0;  // of the opening that the end has said last

 private:
  DirectEvents& events_;
  PublicKey key_{};
};

SegmentHeader segment_to(std::uint64_t session) {
  SegmentHeader header;
  header.bytes = 8;
  header.route = {kOther, kSelf, session};
  return header;
}

TEST(RelaySession,
     a_segment_that_an_earlier_link_left_half_way_is_neither_told_nor_counted_for_the_next) {
  Loop loop;
  test::Recorder events;
  std::array<std::byte, 8> memory{};
  events.place = [&](const SegmentHeader&) { return Placement{memory.data(), 1, 0}; };
  PlayedLinks* direct = nullptr;
  const auto links = std::move(make_relay_links(loop, events, 1, [&](DirectEvents& to) {
                       auto played = std::make_unique<PlayedLinks>(to);
                       direct = played.get();
                       return Result<std::unique_ptr<DirectLinks>>(std::move(played));
                     })).value();
  Handle other;
  other.peer = kOther;
  links->open_via(other, kBetween, 30000);
  direct->hear(RelayKind::open, 100, direct->session);
  ASSERT_TRUE(links->is_up(kOther));
  const SegmentHeader late = segment_to(direct->session);
  const Placement at = direct->begin(late);
  links->drop(kOther);

  links->open_via(other, kBetween, 30000);
  ASSERT_NE(direct->session, late.route.session);
  direct->hear(RelayKind::open, 101, direct->session);
  ASSERT_TRUE(links->is_up(kOther));
  // The other end has sent one segment over this link and closed the link; the segment travels on a
  // slower lane.
  direct->hear(RelayKind::down, direct->session, 1);
  direct->arrive(late, at);
  EXPECT_TRUE(events.arrived.empty()) << "no callback comes for a link that has ended";
  for (int turn = 0; turn < 3; ++turn) loop.run_once(false);
  EXPECT_TRUE(events.down.empty()) << "the last segment is not here yet";
  const SegmentHeader last = segment_to(direct->session);
  direct->arrive(last, direct->begin(last));
  EXPECT_EQ(events.arrived.size(), 1U);
  ASSERT_TRUE(test::run_until(loop, [&] { return !events.down.empty(); }));
  EXPECT_EQ(events.down, std::vector<PeerId>{kOther});
}

}  // namespace
}  // namespace pccl
