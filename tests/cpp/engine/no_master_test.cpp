// What a peer says that joins where no master is, or something else: each address is named with
// what was seen there.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>

#include "engines.h"
#include "mute.h"
#include "transport/entrance.h"
#include "transport/handshake.h"

namespace pccl::testing {
namespace {

/// Listens on loopback and treats who connects as a test says; keeps the connections.
class Stranger {
 public:
  explicit Stranger(std::function<void(int)> greet) : greet_(std::move(greet)) {
    thread_ = std::thread([this] { serve(); });
  }
  ~Stranger() {
    ends_ = true;
    thread_.join();
    for (const int fd : kept_) ::close(fd);
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  [[nodiscard]] const std::string& address() const { return listener_.address(); }

 private:
  void serve() {
    while (!ends_) {
      pollfd waits{listener_.fd(), POLLIN, 0};
      if (::poll(&waits, 1, 20) <= 0) continue;
      kept_.push_back(::accept(listener_.fd(), nullptr, nullptr));
      greet_(kept_.back());
    }
  }

  const Mute listener_;
  std::function<void(int)> greet_;
  std::vector<int> kept_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

void answer(int fd, const OpeningBytes& opening) {
  OpeningBytes theirs{};
  EXPECT_EQ(::recv(fd, theirs.data(), theirs.size(), MSG_WAITALL),
            static_cast<ssize_t>(theirs.size()));
  ::send(fd, opening.data(), opening.size(), MSG_NOSIGNAL);
}

/// An engine that joins, and what comes of it.
struct Joining {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Ticket> ticket;

  explicit Joining(std::vector<std::string> masters) {
    EngineOptions options;
    options.links.listen_hosts = {"127.0.0.1"};
    options.master_timeout_ms = 1200;
    auto made = Engine::create(options);
    EXPECT_TRUE(made.ok()) << made.error().text;
    engine = std::move(made).value();
    JoinOptions join;
    join.masters = std::move(masters);
    ticket = engine->run().join(join);
  }
  void expect(ErrorCode code, const std::vector<std::string>& parts) {
    const Error error = outcome(ticket);
    EXPECT_EQ(error.code, code) << error.text;
    for (const std::string& part : parts) {
      const std::size_t at = error.text.find(part);
      EXPECT_NE(at, std::string::npos) << part << " in " << error.text;
      EXPECT_EQ(error.text.find(part, at + 1), std::string::npos)
          << part << " more than once in " << error.text;
    }
  }
};

TEST(NoMaster, whatever_answers_in_its_place_is_named_with_what_it_did) {
  const Stranger web([](int fd) {
    ::send(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL);
    ::shutdown(fd, SHUT_RDWR);
  });
  const Stranger silent([](int) {});
  const Stranger closes([](int fd) { ::shutdown(fd, SHUT_RDWR); });
  const Stranger newer(
      [](int fd) { answer(fd, encode_opening({kProtocolVersion + 1, Purpose::channel})); });
  const Stranger mute([](int fd) {
    answer(fd, encode_opening({kProtocolVersion, Purpose::channel}));
    const auto offer = encode_master_offer({});
    ::send(fd, offer.data(), offer.size(), MSG_NOSIGNAL);
  });
  const auto peer = make_engines(1);
  const std::string lane = peer[0]->handle("127.0.0.1").addresses.at(0);

  Joining to_web({web.address()});
  Joining to_silent({silent.address()});
  Joining to_closes({closes.address()});
  Joining to_newer({newer.address()});
  Joining to_mute({mute.address()});
  Joining to_peer({lane});
  Joining to_several({"127.0.0.1:1", newer.address(), mute.address()});
  const std::string ours = ", this process " + std::to_string(kProtocolVersion);
  const std::string theirs =
      "it speaks protocol version " + std::to_string(kProtocolVersion + 1) + ours;
  to_web.expect(ErrorCode::refused, {web.address(), "another program listens there"});
  to_silent.expect(ErrorCode::unreachable, {silent.address(), "connected, but no answer"});
  to_closes.expect(ErrorCode::unreachable, {closes.address(), "clos"});
  to_newer.expect(ErrorCode::refused, {newer.address(), theirs});
  to_mute.expect(ErrorCode::unreachable, {mute.address(), "connected, but no answer to hello"});
  to_peer.expect(ErrorCode::refused, {lane, "a pccl peer answers there, not a master"});
  to_several.expect(ErrorCode::unreachable,
                    {"127.0.0.1:1: connection refused", theirs, "no answer to hello"});
}

}  // namespace
}  // namespace pccl::testing
