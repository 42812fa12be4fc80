// The elastic group: ranks differ in an operation that the master has committed before anybody has
// looked at what the others sent. Engines and master on one loop; what comes over links is held
// back as long as the test likes.
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "elastic_run.h"
#include "engine/engine_core.h"
#include "master/server.h"
#include "transport/loop.h"
#include "transport/network.h"

namespace pccl::testing {
namespace {

/// Passes on what links tell, but what they bring waits while `holds`.
class HeldEvents final : public LinkEvents {
 public:
  explicit HeldEvents(LinkEvents& to) : to_(to) {}
  void link_up(PeerId peer) override { to_.link_up(peer); }
  void link_down(PeerId peer, const std::string& reason, Down how) override {
    to_.link_down(peer, reason, how);
  }
  void control_arrived(PeerId peer, std::span<const std::byte> payload) override {
    if (!holds) return to_.control_arrived(peer, payload);
    held_.push_back([this, peer, copy = std::vector<std::byte>(payload.begin(), payload.end())] {
      to_.control_arrived(peer, copy);
    });
  }
  Placement segment_header(PeerId peer, const SegmentHeader& header) override {
    if (!holds) return to_.segment_header(peer, header);
    Placement at;
    at.to = memory_.emplace_back(header.bytes).data();
    return at;
  }
  void segment_arrived(PeerId peer, const SegmentHeader& header, const Placement& at) override {
    if (!holds) return to_.segment_arrived(peer, header, at);
    held_.push_back([this, peer, header, from = at.to] {
      const Placement place = to_.segment_header(peer, header);
      if (place.to == nullptr) return;
      std::memcpy(place.to, from, header.bytes);
      to_.segment_arrived(peer, header, place);
    });
  }
  void segment_sent(PeerId peer, std::uint64_t cookie) override { to_.segment_sent(peer, cookie); }

  void go_on() {
    holds = false;
    for (const auto& call : std::exchange(held_, {})) call();
  }
  [[nodiscard]] std::size_t held() const { return held_.size(); }
  bool holds = false;

 private:
  LinkEvents& to_;
  std::deque<std::function<void()>> held_;
  std::deque<std::vector<std::byte>> memory_;
};

class HeldNetwork final : public Network {
 public:
  explicit HeldNetwork(Loop& loop) : tcp_(loop) {}
  [[nodiscard]] pccl::Clock& clock() override { return tcp_.clock(); }
  [[nodiscard]] Result<std::unique_ptr<Links>> make_links(LinkEvents& to,
                                                          const LinkOptions& options) override {
    events = std::make_unique<HeldEvents>(to);
    return tcp_.make_links(*events, options);
  }
  [[nodiscard]] Result<std::unique_ptr<ChannelListener>> listen(
      const std::string& host, std::uint16_t port,
      std::function<void(std::unique_ptr<Channel>)> accepted,
      std::shared_ptr<const Entrance> entrance) override {
    return tcp_.listen(host, port, std::move(accepted), std::move(entrance));
  }
  [[nodiscard]] std::unique_ptr<Dial> dial(
      const std::string& address, const std::string& run, std::uint64_t timeout_ms,
      std::function<void(Result<std::unique_ptr<Channel>>)> done) override {
    return tcp_.dial(address, run, timeout_ms, std::move(done));
  }
  void in_background(std::function<void()> work, std::function<void()> done) override {
    tcp_.in_background(std::move(work), std::move(done));
  }
  std::unique_ptr<HeldEvents> events;

 private:
  TcpNetwork tcp_;
};

struct LateMember {
  LateMember(Loop& loop, const std::string& master) : network(loop) {
    EngineOptions options;
    options.links.listen_hosts = {"127.0.0.1"};
    core = std::make_unique<EngineCore>(network, options);
    EXPECT_FALSE(core->listen().failed());
    JoinOptions join;
    join.masters = {master};
    core->join(join, joined, [](const GroupEvent&) {});
  }
  std::shared_ptr<Ticket> post(OpRequest request) {
    auto ticket = std::make_shared<Ticket>();
    core->find(kElasticGroup)->post(std::move(request), ticket);
    return ticket;
  }
  [[nodiscard]] std::int32_t rank() const { return core->find(kElasticGroup)->view().rank; }

  HeldNetwork network;
  std::shared_ptr<Ticket> joined = std::make_shared<Ticket>();
  std::unique_ptr<EngineCore> core;
};

class LateMismatch : public ::testing::Test {
 protected:
  LateMismatch() {
    MasterOptions listens;
    listens.port = 0;
    RunOptions options = master_of(2);
    options.founding_delay_ms = 0;
    server_ =
        std::make_unique<master::MasterServer>(tcp_, listens, std::vector<ServedRun>{{options}});
    const auto port = server_->start();
    EXPECT_TRUE(port.ok());
    const std::string address = "127.0.0.1:" + std::to_string(port.value());
    a = std::make_unique<LateMember>(loop, address);
    b = std::make_unique<LateMember>(loop, address);
    EXPECT_TRUE(until([&] { return a->joined->done() && b->joined->done(); }));
  }
  bool until(const std::function<bool()>& done) {
    bool late = false;
    const auto timer = loop.timer(kTestMs, 0, [&] { late = true; });
    while (!late && !done()) loop.run_once(true);
    return done();
  }
  /// Each means the other one for root, and only sends: both are done, the master commits it.
  void commit_a_difference() {
    a->network.events->holds = b->network.events->holds = true;
    std::vector<std::shared_ptr<Ticket>> calls;
    for (LateMember* member : {a.get(), b.get()}) {
      const auto rank = static_cast<std::size_t>(member->rank());
      auto& values = memory_.emplace_back(6, 1.0F);
      calls.push_back(member->post(rooted(OpKind::reduce, 1 - member->rank(), rank, 2, values)));
    }
    ASSERT_TRUE(until([&] { return calls[0]->done() && calls[1]->done(); }));
    for (const auto& call : calls) EXPECT_FALSE(call->error().failed()) << call->error().text;
    ASSERT_TRUE(until([&] { return a->network.events->held() > 0; }));
  }
  static void expect_named(const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::mismatch) << error.text;
    EXPECT_NE(error.text.find("which this rank had completed"), std::string::npos) << error.text;
    EXPECT_EQ(roots_in(error.text), (std::set<char>{'0', '1'})) << error.text;
  }

  Loop loop;
  TcpNetwork tcp_{loop};
  std::unique_ptr<master::MasterServer> server_;
  std::unique_ptr<LateMember> a, b;
  std::deque<std::vector<float>> memory_;
};

TEST_F(LateMismatch, an_operation_that_waits_when_the_difference_is_seen_fails_at_all_ranks) {
  commit_a_difference();
  const auto waits = a->post(barrier());
  a->network.events->go_on();
  ASSERT_TRUE(until([&] { return waits->done(); }));
  expect_named(waits->error());
  b->network.events->go_on();
  const auto other = b->post(barrier());
  ASSERT_TRUE(until([&] { return other->done(); }));
  expect_named(other->error());
}

TEST_F(LateMismatch, the_next_operation_fails_where_none_waits) {
  commit_a_difference();
  a->network.events->go_on();
  const auto next = a->post(barrier());
  ASSERT_TRUE(until([&] { return next->done(); }));
  expect_named(next->error());
  b->network.events->go_on();
  const auto other = b->post(barrier());
  ASSERT_TRUE(until([&] { return other->done(); }));
  expect_named(other->error());
}

}  // namespace
}  // namespace pccl::testing
