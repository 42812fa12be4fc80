// The master's server on loopback, with peers that speak the protocol over real connections, and
// with others that do not.
#include "master/server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../wire/next_version.h"
#include "server_fixture.h"
#include "transport/framing.h"
#include "transport/handshake.h"

namespace {
// Of this machine, and of this process, as far as the program sees.
std::atomic<std::int64_t> suspended_s = 0;
std::atomic<std::int64_t> stopped_s = 0;
}  // namespace

/// In place of the C library's: a process that was stopped has aged. So has a machine that was
/// suspended, but its monotonic clock has not.
extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const long failed = ::syscall(SYS_clock_gettime, clock, now);
  if (failed != 0) return static_cast<int>(failed);
  if (clock == CLOCK_BOOTTIME) now->tv_sec += suspended_s + stopped_s;
  if (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE) now->tv_sec += stopped_s;
  return 0;
}

namespace pccl::master {
namespace {

using Clock = std::chrono::steady_clock;

/// A socket that says whatever a test wants.
class RawClient {
 public:
  /// `room`: for what it has not read; 0: as the system has it.
  explicit RawClient(std::uint16_t port, int room = 0) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (room > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    EXPECT_GE(::fcntl(fd_, F_SETFL, O_NONBLOCK), 0);
  }
  ~RawClient() { ::close(fd_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void write(std::span<const std::byte> bytes) const {
    ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void write(std::string_view text) const { write(std::as_bytes(std::span(text))); }
  /// Of so many bytes those that are there.
  [[nodiscard]] ssize_t read(std::size_t bytes) const {
    std::string block(bytes, 0);
    return ::recv(fd_, block.data(), block.size(), 0);
  }
  /// The other side has closed it.
  [[nodiscard]] bool closed() const {
    std::array<char, 4096> block{};
    while (true) {
      const auto got = ::recv(fd_, block.data(), block.size(), 0);
      if (got > 0) continue;
      return got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    }
  }

 private:
  int fd_;
};

// ----------------------------------------------------------------------------------------- the run

TEST_F(Server, two_peers_found_a_run_and_commit) {
  found(2);
  const auto* welcome = peers_[0]->last<Welcome>();
  ASSERT_NE(welcome, nullptr);
  EXPECT_EQ(welcome->run, options_.run);
  EXPECT_EQ(welcome->heartbeat_ms, options_.heartbeat_ms);
  EXPECT_EQ(welcome->silence_ms, options_.silence_ms);
  EXPECT_EQ(peers_[0]->state.started->id, peers_[1]->state.started->id);
  expect_commit();
  expect_commit();
  EXPECT_TRUE(until([&] { return peers_[0]->last<Heartbeat>() != nullptr; }));
}

TEST_F(Server, a_peer_of_a_later_package_takes_part_and_its_package_is_said) {
  master_.package = "0.1.0";
  options_.min_peers = 2;
  start();
  peer(1).writes = [](const auto& bytes) { return test::of_next_version(bytes); };
  FakePeer& other = peer(2);
  Hello hello;
  hello.member = other.state.self;
  hello.package = "0.2.0";
  other.writes = [&](const auto& bytes) {
    const auto message = decode_peer_to_master(bytes);
    EXPECT_TRUE(message.ok());
    if (!message.ok() || !std::holds_alternative<Hello>(message.value())) return bytes;
    return encode(PeerToMaster(hello));
  };
  ASSERT_TRUE(until([&] { return all_run(2); })) << log_text();
  EXPECT_EQ(said(" runs pccl 0.2.0, this master 0.1.0"), 1U) << log_text();
  EXPECT_EQ(peers_[0]->last<Welcome>()->package, "0.1.0");
  expect_commit();
  peers_[0]->refresh();
  peers_[1]->refresh();
  EXPECT_TRUE(until([&] { return peers_[0]->steps_entered == 1; })) << log_text();
}

TEST_F(Server, a_lost_peer_costs_the_others_one_epoch_and_they_commit_what_was_in_flight) {
  found(3);
  const OpKey op = peers_[0]->issue();
  peers_[1]->issue();
  peers_[2]->reconnects = false;
  peers_[2]->drop();
  EXPECT_TRUE(until([&] { return all_run(2); })) << log_text();
  EXPECT_TRUE(until([&] { return peers_[0]->has_committed(op) && peers_[1]->has_committed(op); }));
  EXPECT_TRUE(peers_[0]->failed.empty());
}

TEST_F(Server, a_peer_whose_connection_comes_back_in_time_stays_a_member) {
  found(2);
  peers_[1]->drop();
  peers_[1]->connect();
  EXPECT_TRUE(until([&] { return peers_[1]->connected() && all_run(2); })) << log_text();
  expect_commit();
  EXPECT_EQ(peers_[1]->last<Evicted>(), nullptr);
}

TEST_F(Server, a_silent_peer_is_evicted_and_the_others_go_on) {
  options_.silence_ms = 400;
  found(3);
  peers_[2]->beats = false;
  peers_[2]->reconnects = false;
  EXPECT_TRUE(until([&] { return peers_[0]->runs(2) && peers_[1]->runs(2); })) << log_text();
  EXPECT_EQ(said("silent for "), 1U) << log_text();
  EXPECT_TRUE(until([&] { return !peers_[2]->connected(); }));
  expect_commit();
}

std::vector<std::byte> frame(std::span<const std::byte> payload) {
  FrameHeader header;
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  HeaderBytes head;
  const std::size_t size = encode_frame_header(header, head);
  std::vector<std::byte> bytes(head.begin(), head.begin() + static_cast<std::ptrdiff_t>(size));
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

/// Peer 9, of which the test sends every byte. It reads nothing.
class RawPeer : public RawClient {
 public:
  explicit RawPeer(std::uint16_t port, int room = 0) : RawClient(port, room) {
    const OpeningBytes opening = encode_opening({kProtocolVersion, Purpose::channel});
    write(std::span<const std::byte>(opening));
    peer::State state;
    state.self.handle.peer = kId;
    state.self.handle.addresses = {"127.0.0.1:9"};
    state.self.place.replica = "slow";
    for (const peer::Action& action : peer::step(state, peer::MasterConnected{})) {
      if (const auto* a = std::get_if<peer::ToMaster>(&action)) send(a->message);
    }
  }
  void send(const PeerToMaster& message) const { write(frame(encode(message))); }

  static constexpr PeerId kId{9};
};

TEST_F(Server, a_long_message_that_takes_its_time_is_a_sign_of_life) {
  options_.silence_ms = 400;
  start();
  RawPeer slow(port_);
  const auto message =
      frame(encode(PeerToMaster{store_request(1, StoreOp::set, {"k"}, std::string(20000, 'x'))}));
  std::size_t sent = 0;
  const auto drip = loop_.timer(50, 50, [&] {
    const std::size_t piece = std::min<std::size_t>(1000, message.size() - sent);
    slow.write(std::span(message).subspan(sent, piece));
    sent += piece;
  });
  FakePeer& other = peer(1);
  EXPECT_TRUE(until([&] { return other.connected(); }));
  other.send(store_request(7, StoreOp::get, {"k"}, "", 60000));
  EXPECT_TRUE(until([&] { return reply(other, 7) != nullptr || slow.closed(); })) << log_text();
  EXPECT_NE(reply(other, 7), nullptr) << log_text();
}

TEST_F(Server, who_does_not_read_large_values_of_the_store_is_heard_all_the_same) {
  options_.silence_ms = 120000;
  start();
  set_large_value();
  RawPeer slow(port_);
  const std::uint64_t gets = kHeldRequestsMax;
  for (std::uint64_t i = 1; i <= gets; ++i) slow.send(store_request(i, StoreOp::get, {"k"}));
  EXPECT_TRUE(until([&] { return run().state().peers.contains(RawPeer::kId); })) << log_text();
  EXPECT_EQ(said("gives up peer"), 0U) << log_text();
  slow.send(Bye{});
  EXPECT_TRUE(until([&] { return !run().state().peers.contains(RawPeer::kId); }, 20000))
      << log_text();
}

TEST_F(Server, who_goes_on_asking_the_store_and_does_not_read_is_evicted) {
  options_.silence_ms = 120000;
  start();
  set_large_value();
  RawPeer slow(port_);
  const std::uint64_t gets = kHeldRequestsMax + 100;  // more than are held
  for (std::uint64_t i = 1; i <= gets; ++i) slow.send(store_request(i, StoreOp::get, {"k"}));
  EXPECT_TRUE(until([&] { return said("gives up peer") == 1; }, 3000)) << log_text();
  EXPECT_FALSE(run().state().peers.contains(RawPeer::kId)) << log_text();
}

TEST_F(Server, who_reads_slowly_is_heard) {
  options_.silence_ms = 1000;
  start();
  set_large_value();
  RawPeer slow(port_, 16384);
  const auto beat = loop_.timer(50, 50, [&] { slow.send(Heartbeat{}); });
  slow.send(store_request(1, StoreOp::get, {"k"}));
  EXPECT_TRUE(until([&] { return run().state().peers.contains(RawPeer::kId); })) << log_text();
  int reads = 0;
  const auto read = loop_.timer(50, 50, [&] { reads += slow.read(10000) > 0 ? 1 : 0; });
  EXPECT_TRUE(until([&] { return reads == 80 || !run().state().peers.contains(RawPeer::kId); }));
  EXPECT_EQ(reads, 80) << log_text();
}

TEST_F(Server, a_tenth_of_a_mbit_in_a_second_is_no_silence) {
  options_.silence_ms = 1000;
  start();
  set_large_value();
  // Its machine acknowledges what there is room for: as packets of a link. (With less room than
  // this the kernels of both sides wait for each other's silly windows.)
  RawPeer slow(port_, 4096);
  const auto beat = loop_.timer(50, 50, [&] { slow.send(Heartbeat{}); });
  slow.send(store_request(1, StoreOp::get, {"k"}));
  EXPECT_TRUE(until([&] { return run().state().peers.contains(RawPeer::kId); })) << log_text();
  ssize_t came = 0;
  const auto read = loop_.timer(100, 100, [&] { came += std::max<ssize_t>(slow.read(1250), 0); });
  EXPECT_TRUE(
      until([&] { return came >= 50000 || !run().state().peers.contains(RawPeer::kId); }, 30000));
  EXPECT_GE(came, 50000) << log_text();
}

TEST_F(Server, who_reads_nothing_for_long_is_evicted_although_it_sends) {
  options_.silence_ms = 400;
  start();
  set_large_value();
  RawPeer slow(port_);
  const auto beat = loop_.timer(50, 50, [&] { slow.send(Heartbeat{}); });
  slow.send(store_request(1, StoreOp::get, {"k"}));
  EXPECT_TRUE(until([&] { return run().state().peers.contains(RawPeer::kId); })) << log_text();
  EXPECT_TRUE(until([&] { return !run().state().peers.contains(RawPeer::kId); })) << log_text();
}

TEST_F(Server, many_large_values_that_are_asked_for_at_once_come_in_their_order) {
  start();
  FakePeer& other = peer(1);
  EXPECT_TRUE(until([&] { return other.connected(); }));
  other.send(store_request(100, StoreOp::set, {"k"}, std::string(3U << 20, 'x')));
  for (std::uint64_t i = 1; i <= 40; ++i) other.send(store_request(i, StoreOp::get, {"k"}));
  EXPECT_TRUE(until([&] { return reply(other, 40) != nullptr; })) << log_text();
  std::uint64_t next = 1;
  for (const MasterToPeer& message : other.inbox) {
    const auto* found = std::get_if<StoreReply>(&message);
    if (found == nullptr || found->id == 100) continue;
    EXPECT_EQ(found->id, next++);
    EXPECT_FALSE(found->error.failed()) << found->error.text;
  }
  EXPECT_EQ(next, 41U);
}

TEST_F(Server, who_waits_for_many_large_values_that_come_at_once_gets_all_of_them) {
  start();
  FakePeer& other = peer(1);
  FakePeer& setter = peer(2);
  EXPECT_TRUE(until([&] { return other.connected() && setter.connected(); }));
  constexpr std::uint64_t kGets = 5;  // 200 MiB: more than may be queued for a peer
  for (std::uint64_t i = 1; i <= kGets; ++i) {
    other.send(store_request(i, StoreOp::get, {"k"}, "", 60000));
  }
  other.send(store_request(100, StoreOp::num_keys, {}));
  EXPECT_TRUE(until([&] { return reply(other, 100) != nullptr; })) << log_text();
  setter.send(store_request(1, StoreOp::set, {"k"}, std::string(40U << 20, 'x')));
  EXPECT_TRUE(until([&] { return reply(other, kGets) != nullptr; }, 20000)) << log_text();
  for (std::uint64_t i = 1; i <= kGets; ++i) {
    ASSERT_NE(reply(other, i), nullptr) << i << log_text();
    EXPECT_FALSE(reply(other, i)->error.failed()) << reply(other, i)->error.text;
  }
}

TEST_F(Server, a_master_that_was_stopped_itself_evicts_nobody) {
  options_.silence_ms = 600;
  found(2);
  const EpochId before = peers_[0]->state.started->id;
  const auto end = Clock::now() + std::chrono::milliseconds(900);
  while (Clock::now() < end) {
  }
  EXPECT_TRUE(until([&] { return said("was stopped for") > 0; }));
  EXPECT_TRUE(until([&] { return all_run(2); })) << log_text();
  expect_commit();
  EXPECT_EQ(said("silent for"), 0U) << log_text();
  EXPECT_EQ(peers_[0]->state.started->id.incarnation(), before.incarnation());
}

TEST_F(Server, a_master_that_was_suspended_or_stopped_for_long_waits_for_all_of_its_members) {
  options_.absence_ms = 50;
  found(2);
  for (auto* const away_s : {&suspended_s, &stopped_s}) {
    SCOPED_TRACE(away_s == &suspended_s ? "suspended" : "stopped");
    lines_.clear();
    *away_s += 30;
    for (const auto& p : peers_) {  // they have given it up meanwhile
      p->reconnects = false;
      p->drop();
    }
    EXPECT_TRUE(until([&] { return said("was stopped for") > 0; })) << log_text();
    bool longer_than_absence = false;
    const auto timer = loop_.timer(4 * options_.absence_ms, 0, [&] { longer_than_absence = true; });
    EXPECT_TRUE(until([&] { return longer_than_absence; }));
    EXPECT_EQ(said("all members are lost"), 0U) << log_text();
    peers_[0]->connect();
    EXPECT_TRUE(until([&] { return peers_[0]->connected(); }));
    peers_[1]->connect();
    EXPECT_TRUE(until([&] { return all_run(2); })) << log_text();
    expect_commit();
    EXPECT_EQ(peers_[0]->evicted + peers_[1]->evicted, "");
  }
}

TEST_F(Server, a_third_peer_is_admitted_at_the_next_boundary) {
  found(2);
  FakePeer& third = peer(3);
  third.refresh();
  EXPECT_TRUE(until([&] { return third.state.at_door && run().state().peers.size() == 3; }));
  peers_[0]->refresh();
  peers_[1]->refresh();
  EXPECT_TRUE(until([&] { return all_run(3); })) << log_text();
  expect_commit();
}

TEST_F(Server, a_peer_of_another_run_is_refused_with_both_names) {
  options_.run = "ours";
  start();
  FakePeer& stranger = peer(1);
  stranger.state.run = "theirs";
  stranger.reconnects = false;
  EXPECT_TRUE(until([&] { return stranger.last<Refuse>() != nullptr; })) << log_text();
  EXPECT_NE(stranger.last<Refuse>()->error.text.find("ours"), std::string::npos);
  EXPECT_NE(stranger.last<Refuse>()->error.text.find("theirs"), std::string::npos);
  EXPECT_TRUE(until([&] { return !stranger.connected(); }));
}

TEST_F(Server, what_comes_on_an_older_connection_of_a_peer_is_dropped) {
  found(2);
  auto second = std::make_unique<FakePeer>(loop_, 1, port_);  // the same peer once more
  second->state = peers_[0]->state;
  peers_[0]->reconnects = false;
  EXPECT_TRUE(until([&] { return !peers_[0]->connected() && second->connected(); }));
  peers_[0] = std::move(second);
  EXPECT_TRUE(until([&] { return all_run(2); })) << log_text();
  expect_commit();
}

// ---------------------------------------------------------------------------------- bad neighbours

TEST_F(Server, garbage_and_half_handshakes_and_oversized_frames_disturb_nobody) {
  found(2);
  const EpochId epoch = peers_[0]->state.started->id;
  const OpeningBytes opening = encode_opening({kProtocolVersion, Purpose::channel});
  FrameHeader huge;
  huge.payload_bytes = static_cast<std::uint32_t>(kHandshakeBytesMax + 1);
  HeaderBytes huge_bytes{};
  const std::size_t huge_size = encode_frame_header(huge, huge_bytes);

  const RawClient web(port_);
  web.write("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const RawClient zeros(port_);
  zeros.write(std::string(5000, '\0'));
  const RawClient other_version(port_);
  other_version.write(encode_opening({kProtocolVersion + 1, Purpose::channel}));
  const RawClient large(port_);
  large.write(opening);
  large.write(std::span(huge_bytes).first(huge_size));
  {
    const RawClient half(port_);
    half.write(std::span(opening).first(7));
  }
  const RawClient quiet(port_);
  quiet.write(opening);
  EXPECT_TRUE(until([&] {
    return web.closed() && zeros.closed() && other_version.closed() && large.closed();
  })) << log_text();
  expect_commit();
  EXPECT_EQ(peers_[0]->state.started->id, epoch);
  EXPECT_EQ(run().state().peers.size(), 2U);
}

/// Sends one payload as its first message and keeps what comes back.
struct OneMessageCaller {
  OneMessageCaller(Loop& loop, std::uint16_t port, std::vector<std::byte> payload) {
    dial = dial_channel(loop, "127.0.0.1:" + std::to_string(port), 1000,
                        [this, payload = std::move(payload)](auto dialled) {
                          ASSERT_TRUE(dialled.ok()) << dialled.error().text;
                          channel = std::move(dialled).value();
                          channel->set_events({[this](std::span<const std::byte> bytes) {
                                                 auto got = decode_master_to_peer(bytes);
                                                 if (got) answer = std::move(got).value();
                                               },
                                               [this](const std::string& why) {
                                                 closed = true;
                                                 reason = why;
                                               }});
                          channel->send(payload);
                        });
  }
  std::unique_ptr<Dial> dial;
  std::unique_ptr<Channel> channel;
  std::optional<MasterToPeer> answer;
  bool closed = false;
  std::string reason;
};

TEST_F(Server, who_does_not_begin_with_a_proper_hello_is_told_so_and_closed) {
  found(2);
  Hello nobody;
  nobody.member.place.replica = "r";
  std::vector<std::byte> noise(100, std::byte{0x81});
  std::vector<std::unique_ptr<OneMessageCaller>> callers;
  for (const auto& payload : {noise, encode(PeerToMaster{Heartbeat{}}),
                              encode(PeerToMaster{store_request(1, StoreOp::get, {"k"})}),
                              encode(PeerToMaster{nobody})}) {
    callers.push_back(std::make_unique<OneMessageCaller>(loop_, port_, payload));
  }
  for (const auto& caller : callers) {
    ASSERT_TRUE(until([&] { return caller->closed; })) << log_text();
    ASSERT_TRUE(caller->answer.has_value()) << caller->reason << "\n" << log_text();
    const auto* refuse = std::get_if<Refuse>(&*caller->answer);
    ASSERT_NE(refuse, nullptr);
    EXPECT_EQ(refuse->error.code, ErrorCode::malformed);
  }
  EXPECT_EQ(said("refused a connection from"), callers.size() - 1) << "one line for each reason\n"
                                                                   << log_text();
  expect_commit();
}

TEST_F(Server, a_member_that_sends_nonsense_is_gone_at_once_and_the_others_go_on) {
  options_.absence_ms = 60000;  // a closed connection alone would not be enough
  found(3);
  peers_[2]->reconnects = false;
  peers_[2]->send_bytes(std::vector<std::byte>(50, std::byte{0x9f}));
  EXPECT_TRUE(until([&] { return !peers_[2]->connected() && all_run(2); })) << log_text();
  ASSERT_NE(peers_[2]->last<Refuse>(), nullptr);
  EXPECT_EQ(peers_[2]->last<Refuse>()->error.code, ErrorCode::malformed);
  expect_commit();
}

TEST_F(Server, a_second_hello_on_a_connection_ends_it) {
  found(2);
  Hello hello;
  hello.member = peers_[0]->state.self;
  peers_[0]->send(hello);
  EXPECT_TRUE(until([&] { return peers_[0]->last<Refuse>() != nullptr; }));
  EXPECT_EQ(peers_[0]->last<Refuse>()->error.code, ErrorCode::malformed);
}

// --------------------------------------------------------------------------------------- the store

TEST_F(Server, a_get_waits_until_another_peer_sets_the_key) {
  found(2);
  peers_[0]->send(store_request(1, StoreOp::get, {"k"}));
  peers_[0]->send(store_request(2, StoreOp::num_keys, {}));
  ASSERT_TRUE(until([&] { return reply(*peers_[0], 2) != nullptr; }));
  EXPECT_EQ(reply(*peers_[0], 1), nullptr);
  peers_[1]->send(store_request(1, StoreOp::set, {"k"}, "value"));
  ASSERT_TRUE(until([&] { return reply(*peers_[0], 1) != nullptr; }));
  EXPECT_EQ(reply(*peers_[0], 1)->values, (std::vector<Bytes>{{'v', 'a', 'l', 'u', 'e'}}));
  ASSERT_TRUE(until([&] { return reply(*peers_[1], 1) != nullptr; }));
}

TEST_F(Server, a_get_that_waits_too_long_times_out_with_the_key) {
  found(2);
  peers_[0]->send(store_request(1, StoreOp::get, {"never"}, "", 30));
  peers_[0]->send(store_request(2, StoreOp::wait, {"never"}, "", 0));
  ASSERT_TRUE(until([&] { return reply(*peers_[0], 1) != nullptr; }));
  EXPECT_EQ(reply(*peers_[0], 1)->error.code, ErrorCode::timed_out);
  EXPECT_NE(reply(*peers_[0], 1)->error.text.find("never"), std::string::npos);
  ASSERT_TRUE(until([&] { return reply(*peers_[0], 2) != nullptr; }));
  EXPECT_EQ(reply(*peers_[0], 2)->error.code, ErrorCode::timed_out);
}

TEST_F(Server, what_a_peer_waited_for_before_it_came_back_is_not_answered_twice) {
  found(2);
  peers_[0]->send(store_request(1, StoreOp::get, {"k"}));
  peers_[0]->send(store_request(2, StoreOp::num_keys, {}));
  ASSERT_TRUE(until([&] { return reply(*peers_[0], 2) != nullptr; }));
  peers_[0]->drop();
  peers_[0]->connect();
  ASSERT_TRUE(until([&] { return peers_[0]->connected() && all_run(2); })) << log_text();
  peers_[0]->send(store_request(1, StoreOp::get, {"other"}));  // the same number, another wait
  peers_[1]->send(store_request(3, StoreOp::set, {"k"}, "v"));
  peers_[1]->send(store_request(4, StoreOp::set, {"other"}, "o"));
  ASSERT_TRUE(until([&] { return reply(*peers_[0], 1) != nullptr; }));
  EXPECT_EQ(reply(*peers_[0], 1)->values, (std::vector<Bytes>{{'o'}}));
}

TEST_F(Server, options_that_cannot_work_are_errors_that_name_them) {
  const auto error_of = [&](auto change) {
    struct : MasterOptions, RunOptions {
    } all;
    static_cast<RunOptions&>(all) = options_;
    all.port = 0;
    change(all);
    MasterServer server(network_, all, {{all}});
    const auto started = server.start();
    return started.ok() ? std::string() : started.error().text;
  };
  const auto names = [](const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(names(error_of([](auto& o) { o.host = "0.0.0.0"; }), "--insecure"));
  EXPECT_TRUE(names(error_of([](auto& o) { o.host = "127.0.0.1.example"; }), "--insecure"));
  for (const std::string& run : {std::string(), std::string(200, 'r'), std::string("two words"),
                                 std::string("a/b"), std::string("gr\xC3\xB6sse")}) {
    EXPECT_TRUE(names(error_of([&](auto& o) { o.run = run; }), "is not a run name")) << run;
  }
  EXPECT_EQ(error_of([](auto& o) { o.run = "Llama-3.1_8b"; }), "");
  EXPECT_TRUE(names(error_of([](auto& o) { o.min_peers = 0; }), "min_peers"));
  EXPECT_TRUE(names(error_of([](auto& o) { o.hold_below = 0; }), "hold_below"));
  EXPECT_TRUE(names(error_of([](auto& o) { o.heartbeat_ms = 0; }), "heartbeat_ms"));
  EXPECT_TRUE(names(error_of([](auto& o) { o.silence_ms = 30; }), "silence_ms"));
  EXPECT_EQ(error_of([](auto&) {}), "");
  EXPECT_EQ(error_of([](auto& o) {
              o.host = "0.0.0.0";
              o.insecure = true;
            }),
            "");
  start();
  const std::string taken = error_of([&](auto& o) { o.port = port_; });
  EXPECT_TRUE(names(taken, std::to_string(port_))) << taken;
}

}  // namespace
}  // namespace pccl::master
