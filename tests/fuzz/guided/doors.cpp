// Connections before they are proven, with any bytes from the other side: the entrance of a channel
// at the master and at a member, the gate of lanes, and a dial. None of them proves anything, so
// none of them gets in.
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../../cpp/transport/memory_stream.h"
#include "base/protocol.h"
#include "input.h"
#include "targets.h"
#include "transport/address.h"
#include "transport/entrance.h"
#include "transport/lane_dial.h"
#include "transport/lane_gate.h"
#include "transport/listen.h"
#include "transport/loop.h"
#include "transport/talk.h"

namespace pccl::fuzz {
namespace {

constexpr int kRoundsMax = 200;  // of a loop, until the answer to the last byte is there

Secret number(std::uint8_t n) {
  std::array<std::uint8_t, Secret::kBytes> bytes{};
  bytes.fill(n);
  return Secret(bytes);
}
const KeyPair& master_key() {
  static const KeyPair key = KeyPair::from(number(1));
  return key;
}
const KeyPair& own_key() {
  static const KeyPair key = KeyPair::from(number(2));
  return key;
}
Tokens some_tokens() {
  return Tokens({{"t", number(3), key_hash(master_key().public_key()), {}}}, "F");
}

/// Bytes of the other side, in the pieces that the input says.
void talk_to(Stream& other, Loop& loop, Input& in) {
  for (int rounds = 0; !in.ended() && rounds < kRoundsMax; ++rounds) {
    const std::size_t piece = in.flag() ? 1 + in.below(20) : 4096;
    (void)other.write(in.take(piece));
    loop.run_once(false);
  }
  other.shut();
  std::array<std::byte, 4096> answer;
  for (int rounds = 0; rounds < 20; ++rounds) {
    loop.run_once(false);
    (void)other.read(answer);
  }
}

void at_master(Input& in) {
  Loop loop;
  auto [here, there] = test::MemoryStream::pair(loop, 1U << 16, 1U << 20);
  const auto talk = std::make_shared<Talk>(loop, std::move(here), 5000);
  talk->on_failed([](const TalkEnd& end) { require(!end.reason.empty(), "a reason"); });
  admit(loop, talk, std::make_shared<Entrance>(Entrance{master_key(), some_tokens()}),
        [](const Caller&) { require(false, "who proves nothing stays out"); });
  talk_to(*there, loop, in);
}

void at_member(Input& in) {
  Loop loop;
  auto [here, there] = test::MemoryStream::pair(loop, 1U << 16, 1U << 20);
  const auto talk = std::make_shared<Talk>(loop, std::move(here), 5000);
  talk->on_failed([](const TalkEnd& end) { require(!end.reason.empty(), "a reason"); });
  const Entry entry{own_key(), std::make_shared<const Tokens>(some_tokens()), "r"};
  enter(loop, talk, entry, [](const Error& error) {
    require(error.failed(), "a member does not enter at another master");
  });
  talk_to(*there, loop, in);
}

/// A port with what stands behind it; kept for all inputs, as in a process that runs.
class Gates final : private LaneGateOwner {
 public:
  Gates()
      : gate_(loop, *this, own_key(), Plaintext::none,
              std::move(listen_on(loop, {"127.0.0.1"}, 0, 0)).value()) {}
  Loop loop;
  [[nodiscard]] std::uint16_t port() const { return gate_.port(); }

 private:
  bool may_dial(const LaneHello&) override { return true; }
  bool takes_lane(const LaneHello&) override { return true; }
  void lane_arrived(const LaneHello&, std::unique_ptr<Stream>) override {
    require(false, "a lane that nobody has proven");
  }
  LaneGate gate_;
};

/// Sends the input over a bare socket and waits until the other side has closed it.
void feed(int fd, Loop& loop, Input& in) {
  const linger at_once{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  while (!in.ended()) {
    const auto piece = in.take(in.flag() ? 1 + in.below(20) : 4096);
    if (::send(fd, piece.data(), piece.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
    loop.run_once(false);
  }
  ::shutdown(fd, SHUT_WR);
  std::array<std::byte, 4096> answer;
  for (int rounds = 0; rounds < kRoundsMax; ++rounds) {
    loop.run_once(false);
    const auto got = ::recv(fd, answer.data(), answer.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) break;
  }
  ::close(fd);
  loop.run_once(false);
}

void at_gate(Input& in) {
  static Gates gates;
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto to = numeric_address("127.0.0.1", gates.port()).value();
  if (fd < 0 || ::connect(fd, to.raw(), to.length) != 0) {
    if (fd >= 0) ::close(fd);
    return;
  }
  gates.loop.run_once(false);
  std::vector<std::byte> first;
  if (in.flag()) {  // a right opening, so that its hello is read
    const auto opening = encode_opening({kProtocolVersion, Purpose::lane});
    first.assign(opening.begin(), opening.end());
    if (in.flag()) {
      LaneHello hello;
      hello.dialer = master_key().public_key();
      hello.acceptor = peer_of(own_key().public_key());
      hello.link = 5;
      hello.joins = in.flag();
      hello.fills = in.flag();
      const auto bytes = encode_lane_hello(hello);
      first.insert(first.end(), bytes.begin(), bytes.end());
    }
    (void)::send(fd, first.data(), first.size(), MSG_NOSIGNAL);
    gates.loop.run_once(false);
  }
  feed(fd, gates.loop, in);
}

void at_dial(Input& in) {
  static Loop loop;
  static std::vector<Socket> listening = std::move(listen_on(loop, {"127.0.0.1"}, 0, 0)).value();
  const Dialler dialler{own_key(), Plaintext::none, 30000, /*local=*/false,
                        /*small_packets=*/in.flag()};
  Handle to;
  to.key = master_key().public_key();
  to.peer = peer_of(to.key);
  to.addresses = {local_address(listening[0].fd()).text()};
  LaneHello hello;
  hello.dialer = own_key().public_key();
  hello.acceptor = to.peer;
  hello.link = 6;
  bool over = false;
  auto dial = std::make_unique<LaneDial>(
      loop, dialler, to, hello,
      LaneDial::Events{[](std::unique_ptr<Stream>, const std::string&) {
                         require(false, "a dial to a process that proves nothing");
                       },
                       [&over](const LaneDial::Failure& failure) {
                         over = true;
                         require(!failure.what.empty(), "a reason");
                       }});
  int fd = -1;
  for (int rounds = 0; rounds < kRoundsMax && fd < 0; ++rounds) {
    loop.run_once(false);
    fd = ::accept4(listening[0].fd(), nullptr, nullptr, SOCK_CLOEXEC);
  }
  if (fd < 0) return;
  if (in.flag()) {
    const auto opening = encode_opening({kProtocolVersion, Purpose::lane});
    (void)::send(fd, opening.data(), opening.size(), MSG_NOSIGNAL);
    if (in.flag()) {
      const auto offer = encode_lane_offer({});
      (void)::send(fd, offer.data(), offer.size(), MSG_NOSIGNAL);
    }
  }
  feed(fd, loop, in);
  for (int rounds = 0; rounds < kRoundsMax && !over; ++rounds) loop.run_once(false);
  (void)dial->report();
  dial.reset();
}

}  // namespace

void doors(Bytes input) {
  Input in(input);
  switch (in.below(4)) {
    case 0:
      return at_master(in);
    case 1:
      return at_member(in);
    case 2:
      return at_gate(in);
    default:
      return at_dial(in);
  }
}

}  // namespace pccl::fuzz
