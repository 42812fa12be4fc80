#include "transport/gate.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "base/protocol.h"
#include "transport/address.h"
#include "transport/local_socket.h"
#include "transport/sys.h"

namespace pccl {
namespace {
constexpr std::size_t kUnprovenMax = 256;
constexpr std::size_t kPushedOutAtOnce = 16;
constexpr int kAcceptsMax = 64;                // then other sockets have their turn
constexpr std::uint64_t kAcceptPauseMs = 100;  // after "too many open files"
}  // namespace

Gate::Gate(Loop& loop, std::vector<Socket> listening, Purpose purpose, Opened opened)
    : loop_(loop),
      purpose_(purpose),
      opened_(std::move(opened)),
      refusals_(std::make_shared<Refusals>(loop)) {
  port_ = local_address(listening.front().fd()).port();
  for (Socket& socket : listening) {
    const int fd = socket.fd();
    auto poll = std::make_unique<Poll>(loop_, fd, [this, fd](bool, bool) { accept(fd); });
    poll->want(true, false);
    listening_.push_back({std::move(socket), std::move(poll)});
  }
}

Gate::~Gate() { close(); }

void Gate::close() {
  paused_.reset();
  for (Listening& listening : listening_) listening.poll.reset();
  listening_.clear();
  for (const Unproven& one : unproven_) {
    one.talk->on_over(nullptr);
    one.talk->drop();
  }
  unproven_.clear();
  networks_.clear();
}

void Gate::accept(int listening_fd) {
  for (int i = 0; i < kAcceptsMax; ++i) {
    const int fd = ::accept4(listening_fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      admit(Socket(loop_, fd));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      refusals_->refused("anybody", errno_text(errno));
      pause();
      return;
    }
    // An error of one connection before it was accepted is no reason to stop accepting the others.
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
  }
}

void Gate::pause() {
  for (Listening& listening : listening_) listening.poll->want(false, false);
  paused_ = loop_.timer(kAcceptPauseMs, 0, [this] {
    for (Listening& listening : listening_) listening.poll->want(true, false);
  });
}

void Gate::admit(Socket socket) {
  const int fd = socket.fd();
  if (is_local_socket(fd) && !is_same_user(fd)) {
    return refusals_->refused("another user", "shared memory is for processes of one user");
  }
  auto stream = std::make_unique<SocketStream>(loop_, std::move(socket));
  const std::string remote_host = stream->remote_host();
  if (refusals_->too_often(remote_host)) {
    return refusals_->refused(remote_host, "too many connections of this address have failed");
  }
  if (unproven_.size() >= kUnprovenMax) push_some_out();
  auto talk = std::make_shared<Talk>(loop_, std::move(stream), kHandshakeMs);
  const auto network = networks_.try_emplace(network_of(remote_host)).first;
  ++network->second;
  const auto here = unproven_.insert(unproven_.end(), {talk, network});
  talk->on_over([this, remote_host, here](bool taken) {
    if (taken) refusals_->proven(remote_host);
    forget(here);
  });
  talk->on_failed([log = refusals_, remote_host](const TalkEnd& end) {
    if (end.how == TalkEnd::How::looked) return;  // whether a process listens here
    log->refused(remote_host, end.reason);
  });
  talk->expect(
      kOpeningBytes,
      [this, remote_host, weak = std::weak_ptr(talk)](std::span<const std::byte> bytes) {
        const auto open = weak.lock();
        if (!open) return;
        opening_arrived(open, remote_host, bytes);
      },
      may_be_opening);
}

void Gate::opening_arrived(const std::shared_ptr<Talk>& talk, const std::string& remote_host,
                           std::span<const std::byte> bytes) {
  const auto opening = decode_opening(bytes);
  if (!opening) return talk->fail(opening.error().text);
  // A process of pccl's that dials, and ends or leaves meanwhile, is nobody to be warned of.
  talk->on_failed([log = refusals_, remote_host](const TalkEnd& end) {
    if (end.how == TalkEnd::How::gone) return log->gone(remote_host);
    log->refused(remote_host, end.reason);
  });
  talk->send(encode_opening({kProtocolVersion, purpose_}));
  const bool same_version = opening.value().version == kProtocolVersion;
  if (same_version && opening.value().purpose == purpose_) return opened_(talk);

  // The other side gets our opening and can say what is wrong; closing at once could destroy the
  // opening on its way.
  const std::string why = !same_version               ? other_version(opening.value())
                          : purpose_ == Purpose::lane ? "it looks for a master, here is a peer"
                                                      : "it looks for a peer, here is a master";
  refusals_->refused(remote_host, why);
  talk->on_failed(nullptr);
  talk->finish();
}

/// Makes room for some connections at once: looking for those that go takes longer than accepting
/// one. They go from the networks that have most here, and first the oldest that have sent nothing.
/// So a sender that opens many takes no place from others.
void Gate::push_some_out() {
  std::size_t keep = 0;  // so many each network
  for (const auto& [network, connections] : networks_) keep = std::max(keep, connections);
  const auto beyond = [this](std::size_t keep_now) {
    std::size_t sum = 0;
    for (const auto& [network, connections] : networks_) {
      if (connections > keep_now) sum += connections - keep_now;
    }
    return sum;
  };
  while (keep > 0 && beyond(keep) < kPushedOutAtOnce) --keep;
  std::size_t out = 0;
  for (const bool silent_only : {true, false}) {
    for (auto next = unproven_.begin(); next != unproven_.end() && out < kPushedOutAtOnce;) {
      const Unproven one = *next++;  // it is forgotten when it is dropped
      if (one.network->second <= keep || (silent_only && !one.talk->silent())) continue;
      ++out;
      refusals_->refused(one.talk->remote_host(),
                         "too many connections without a complete handshake");
      one.talk->drop();
    }
  }
}

void Gate::forget(Unprovens::iterator one) {
  if (--one->network->second == 0) networks_.erase(one->network);
  unproven_.erase(one);
}

}  // namespace pccl
