// What the master queues for peers, over channels that carry nothing: the test says how much of
// their queues has been read.
#include "master/connections.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "fake_peer.h"
#include "transport/loop.h"

namespace pccl::master {
namespace {

/// The queue of a FakeChannel, which the channel's owner may destroy.
struct Wire {
  std::size_t queued = 0;
  bool held_back = false;
  bool closed = false;
};

class FakeChannel final : public Channel {
 public:
  explicit FakeChannel(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}
  ~FakeChannel() override {
    if (total_) *total_ -= wire_->queued;
    wire_->closed = true;
  }
  void set_events(Events) override {}
  void send(std::span<const std::byte> payload) override {
    wire_->queued += payload.size();
    if (total_) *total_ += payload.size();
  }
  void watch_queue(std::size_t, std::shared_ptr<std::size_t> total,
                   std::function<void()>) override {
    total_ = std::move(total);
  }
  void trust() override {}
  void close() override {}
  [[nodiscard]] const std::string& remote() const override { return host_; }
  [[nodiscard]] const std::string& local_host() const override { return host_; }
  [[nodiscard]] std::size_t queued_bytes() const override { return wire_->queued; }
  [[nodiscard]] bool held_back() const override { return wire_->held_back; }

 private:
  std::shared_ptr<Wire> wire_;
  std::shared_ptr<std::size_t> total_;
  std::string host_ = "fake:1";
};

class Queues : public testing::Test, protected ConnectionEvents {
 protected:
  Queues() {
    set_log_sink([](LogLevel, std::string_view) {});
    connections_.begin();
  }
  ~Queues() override { set_log_sink(nullptr); }

  /// A peer that has said Hello.
  std::shared_ptr<Wire> peer(std::uint64_t id) { return peer(id, connections_); }
  static std::shared_ptr<Wire> peer(std::uint64_t id, Connections& connections) {
    auto wire = std::make_shared<Wire>();
    Hello hello;
    hello.member.handle.peer.value = id;
    EXPECT_NE(connections.take(std::make_unique<FakeChannel>(wire), hello), 0U);
    return wire;
  }
  static MasterToPeer value(std::size_t bytes) {
    StoreReply reply;
    reply.values = {Bytes(bytes, 'x')};
    return reply;
  }
  bool goes(std::uint64_t id) {
    return run_until(loop_, [&] { return gone_.contains(PeerId{id}); }, 3000);
  }

  Loop loop_;
  std::set<PeerId> gone_;
  Error refuses_;
  Connections connections_{loop_, *this, 20, 60000, ""};

 private:
  [[nodiscard]] Error refusal(const Hello&, bool again) const override {
    return again ? refuses_ : Error{};
  }
  void connected(Hello, std::uint64_t) override {}
  void message(PeerId, PeerToMaster, std::size_t) override {}
  void room(PeerId) override {}
  void disconnected(PeerId, std::string, std::string) override {}
  void gone(PeerId peer, std::string) override { gone_.insert(peer); }
  void woke(std::uint64_t) override {}
};

TEST_F(Queues, no_more_is_queued_for_a_peer_than_its_limit_and_then_the_peer_goes) {
  const auto wire = peer(1);
  const MasterToPeer large = value(16U << 20);
  for (int i = 0; i < 20; ++i) connections_.send(PeerId{1}, large);
  EXPECT_LE(wire->queued, kUnreadBytesMax);
  EXPECT_EQ(connections_.queued_bytes(), wire->queued);
  EXPECT_TRUE(goes(1));
  EXPECT_TRUE(wire->closed);
  EXPECT_EQ(connections_.queued_bytes(), 0U);
}

TEST_F(Queues, what_all_peers_together_do_not_read_has_a_limit_too) {
  const MasterToPeer large = value(32U << 20);
  constexpr std::uint64_t kPeers = 20;
  std::vector<PeerId> all;
  for (std::uint64_t id = 1; id <= kPeers; ++id) {
    peer(id);
    all.push_back(PeerId{id});
  }
  for (int i = 0; i < 3; ++i) connections_.send(all, large);
  EXPECT_LE(connections_.queued_bytes(), kUnreadBytesOfAllMax + kPeers * kAnswerBelowBytes);
  const auto reads = peer(100);  // little is queued for this one
  connections_.send(PeerId{100}, value(100));
  EXPECT_GT(reads->queued, 0U);
  EXPECT_TRUE(goes(kPeers));
  EXPECT_FALSE(gone_.contains(PeerId{1}));
  EXPECT_FALSE(gone_.contains(PeerId{100}));
}

TEST_F(Queues, a_peer_that_is_not_read_is_not_silent) {
  Connections connections(loop_, *this, 20, 300, "");
  connections.begin();
  const auto waits = peer(1, connections);
  const auto silent = peer(2, connections);
  waits->held_back = true;
  EXPECT_TRUE(run_until(loop_, [&] { return gone_.contains(PeerId{2}); }, 3000));
  run_until(loop_, [&] { return gone_.contains(PeerId{1}); }, 600);
  EXPECT_FALSE(gone_.contains(PeerId{1}));
  waits->held_back = false;
  EXPECT_TRUE(run_until(loop_, [&] { return gone_.contains(PeerId{1}); }, 3000));
}

TEST_F(Queues, a_hello_that_is_refused_leaves_the_connection_of_that_peer_as_it_is) {
  const auto wire = peer(1);
  refuses_ = Error{ErrorCode::refused, "no"};
  Hello forged;
  forged.member.handle.peer.value = 1;
  EXPECT_EQ(connections_.take(std::make_unique<FakeChannel>(std::make_shared<Wire>()), forged), 0U);
  EXPECT_FALSE(wire->closed);
  connections_.send(PeerId{1}, value(100));
  EXPECT_GT(wire->queued, 0U);
  refuses_ = {};
  EXPECT_NE(connections_.take(std::make_unique<FakeChannel>(std::make_shared<Wire>()), forged), 0U);
  EXPECT_TRUE(wire->closed);
}

}  // namespace
}  // namespace pccl::master
