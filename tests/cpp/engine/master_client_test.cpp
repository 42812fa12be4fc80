// The connection to the master: what counts as its silence, and what goes over it.
#include "engine/master_client.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "fake_links.h"

namespace pccl::testing {
namespace {

class FakeChannel : public Channel {
 public:
  FakeChannel(const std::uint64_t& received, Events& events, std::size_t& sent)
      : received_(received), events_(events), sent_(sent) {}
  void set_events(Events events) override { events_ = std::move(events); }
  void send(std::span<const std::byte>) override { ++sent_; }
  void trust() override {}
  void close() override {}
  [[nodiscard]] const std::string& remote() const override { return host_; }
  [[nodiscard]] const std::string& local_host() const override { return host_; }
  [[nodiscard]] std::size_t queued_bytes() const override { return 0; }
  [[nodiscard]] std::uint64_t received_bytes() const override { return received_; }

 private:
  const std::uint64_t& received_;
  Events& events_;
  std::size_t& sent_;
  std::string host_ = "127.0.0.1";
};

/// Every dial succeeds.
class FakeNetwork : public Network {
 public:
  explicit FakeNetwork(Loop& loop) : loop_(loop) {}
  [[nodiscard]] Clock& clock() override { return loop_; }
  [[nodiscard]] Result<std::unique_ptr<Links>> make_links(LinkEvents&,
                                                          const LinkOptions&) override {
    return {ErrorCode::unreachable, "none"};
  }
  [[nodiscard]] Result<std::unique_ptr<ChannelListener>> listen(
      const std::string&, std::uint16_t, std::function<void(std::unique_ptr<Channel>)>,
      std::shared_ptr<const Entrance>) override {
    return {ErrorCode::unreachable, "none"};
  }
  [[nodiscard]] std::unique_ptr<Dial> dial(
      const std::string&, const std::string&, std::uint64_t,
      std::function<void(Result<std::unique_ptr<Channel>>)> done) override {
    loop_.defer([this, done = std::move(done)] {
      done(std::unique_ptr<Channel>(std::make_unique<FakeChannel>(received, events, sent)));
    });
    return std::make_unique<Dial>();
  }
  void in_background(std::function<void()>, std::function<void()>) override {}

  std::uint64_t received = 0;
  Channel::Events events;  // of the newest channel
  std::size_t sent = 0;    // messages, over all channels

 private:
  Loop& loop_;
};

class MasterClientTest : public ::testing::Test {
 protected:
  void connect(MasterClient& client) {
    client.dial();
    while (!client.connected()) node_.loop.run_once(false);
  }
  void hear(const MasterToPeer& message) { network_.events.arrived(encode(message)); }
  void lose() { network_.events.closed("it has closed the connection"); }

  Node node_{PeerId{1}};
  FakeNetwork network_{node_.loop};
  EngineContext context_{
      network_, node_.loop, node_.links, node_.pool, node_.options, node_.counters, node_.host, {},
      0,        {},         {},          {}};
};

TEST_F(MasterClientTest, a_long_message_is_a_sign_of_life_and_a_wait_says_for_how_long) {
  std::string lost;
  MasterClient client(context_, {"127.0.0.1:1"}, "",
                      {[] {}, [&](const std::string& reason, bool) { lost = reason; },
                       [](const MasterToPeer&) {}, [] { return Heartbeat{}; }});
  connect(client);
  Welcome welcome;
  welcome.heartbeat_ms = 1000;
  welcome.silence_ms = 5000;
  EXPECT_FALSE(client.welcomed(welcome));
  for (int i = 0; i < 1000; ++i) {  // 50 s of one message
    ++network_.received;
    client.tick(50);
  }
  EXPECT_EQ(lost, "");
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  for (int i = 0; i < 200; ++i) client.tick(50);
  EXPECT_NE(lost.find("silent"), std::string::npos) << lost;
  set_log_sink(nullptr);
  ASSERT_EQ(lines.size(), 1U);
  const std::string limit = "until a master is back, 1800.0 s at most (PCCL_HOLD_TIMEOUT_S)";
  EXPECT_NE(lines[0].find(limit), std::string::npos) << lines[0];
}

TEST_F(MasterClientTest, a_reply_of_the_store_before_it_does_not_end_the_time_without_a_master) {
  MasterClient client(context_, {"127.0.0.1:1"}, "",
                      {[] {}, [](const std::string&, bool) {}, [](const MasterToPeer&) {},
                       [] { return Heartbeat{}; }});
  client.tick(700);
  connect(client);
  EXPECT_EQ(client.without_ms(), 700U);
  hear(StoreReply{});
  EXPECT_EQ(client.without_ms(), 700U);
  hear(Welcome{});
  EXPECT_EQ(client.without_ms(), 0U) << "the next outage counts from its own beginning";
}

TEST_F(MasterClientTest, a_call_of_the_store_goes_to_a_master_in_charge_only_and_waits_for_one) {
  std::string lost;
  MasterClient client(context_, {"127.0.0.1:1"}, "",
                      {[] {}, [&](const std::string& reason, bool) { lost = reason; },
                       [](const MasterToPeer&) {}, [] { return Heartbeat{}; }});
  const auto early = std::make_shared<Ticket>();
  client.store({}, early);
  connect(client);
  hear(Hold{"it stands by: another holds the register"});
  const auto later = std::make_shared<Ticket>();
  client.store({}, later);
  EXPECT_EQ(network_.sent, 0U);
  StoreRequest soon;
  soon.timeout_ms = 100;
  const auto late = std::make_shared<Ticket>();
  client.store(soon, late);
  client.tick(150);
  ASSERT_TRUE(late->done());
  EXPECT_NE(
      late->error().text.find("within 100 ms (no master in charge: 127.0.0.1:1: it stands by"),
      std::string::npos)
      << late->error().text;
  lose();
  EXPECT_EQ(lost, "it stands by: another holds the register");
  EXPECT_FALSE(early->done());
  EXPECT_FALSE(later->done());

  connect(client);
  hear(Hold{"it stands by: it has just begun"});
  hear(Welcome{});
  EXPECT_EQ(network_.sent, 2U);
  StoreReply reply;
  reply.id = 1;
  hear(reply);
  EXPECT_TRUE(early->done());
  EXPECT_EQ(early->error().code, ErrorCode::none);
  lose();
  EXPECT_EQ(lost, "it has closed the connection") << "and not that it stood by once";
  ASSERT_TRUE(later->done()) << "the store does not outlive its master";
  EXPECT_EQ(later->error().code, ErrorCode::unreachable);
}

}  // namespace
}  // namespace pccl::testing
