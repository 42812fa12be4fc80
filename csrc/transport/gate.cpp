#include "transport/gate.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "base/protocol.h"
#include "transport/sys.h"

namespace pccl {
namespace {
constexpr std::size_t kUnprovenMax = 256;
constexpr int kAcceptsMax = 64;                // then other sockets have their turn
constexpr std::uint64_t kAcceptPauseMs = 100;  // after "too many open files"
}  // namespace

Gate::Gate(Loop& loop, std::vector<Socket> listening, Purpose purpose,
           std::uint64_t user_timeout_ms, Opened opened)
    : loop_(loop),
      purpose_(purpose),
      user_timeout_ms_(user_timeout_ms),
      opened_(std::move(opened)),
      refusals_(std::make_shared<RefusalLog>(loop)) {
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
    if (!one.talk->over()) one.talk->drop();
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
  forget_finished();
  if (unproven_.size() >= kUnprovenMax) push_one_out();
  const std::string remote_host = remote_address(socket.fd()).host();
  tune_connection(socket.fd(), user_timeout_ms_);
  auto talk = std::make_shared<Talk>(loop_, std::make_unique<TcpStream>(loop_, std::move(socket)),
                                     kHandshakeMs);
  const auto network = networks_.try_emplace(network_of(remote_host)).first;
  ++network->second;
  unproven_.push_back({talk, network});
  talk->on_failed([log = refusals_, remote_host, weak = std::weak_ptr(talk)](const auto& reason) {
    const auto ended = weak.lock();
    if (ended && ended->only_looked()) return;  // whether a process listens here
    log->refused(remote_host, reason);
  });
  talk->expect(
      kOpeningBytes,
      [this, remote_host, weak = std::weak_ptr(talk)](std::span<const std::byte> bytes) {
        if (const auto open = weak.lock()) opening_arrived(open, remote_host, bytes);
      },
      may_be_opening);
}

void Gate::opening_arrived(const std::shared_ptr<Talk>& talk, const std::string& remote_host,
                           std::span<const std::byte> bytes) {
  const auto opening = decode_opening(bytes);
  if (!opening) return talk->fail(opening.error().text);
  talk->send(encode_opening({kProtocolVersion, purpose_}));
  const bool same_version = opening.value().version == kProtocolVersion;
  if (same_version && opening.value().purpose == purpose_) return opened_(talk);

  // The other side gets our opening and can say what is wrong; closing at once could destroy the
  // opening on its way.
  const std::string why = !same_version ? "it speaks protocol version " +
                                              std::to_string(opening.value().version) +
                                              ", this process " + std::to_string(kProtocolVersion)
                          : purpose_ == Purpose::lane ? "it looks for a master, here is a peer"
                                                      : "it looks for a peer, here is a master";
  refusals_->refused(remote_host, why);
  talk->on_failed(nullptr);
  talk->finish();
}

/// Of the network with most connections here one goes: the oldest that has sent nothing, else the
/// oldest. So a sender that opens many takes no place from others.
void Gate::push_one_out() {
  std::size_t most = 0;
  for (const auto& [network, connections] : networks_) most = std::max(most, connections);
  auto out = unproven_.end();
  for (auto one = unproven_.begin(); one != unproven_.end(); ++one) {
    if (one->network->second < most) continue;
    if (out == unproven_.end()) out = one;
    if (!one->talk->silent()) continue;
    out = one;
    break;
  }
  refusals_->refused(out->talk->remote_host(), "too many connections without a complete handshake");
  out->talk->drop();
  forget(out);
}

Gate::Unprovens::iterator Gate::forget(Unprovens::iterator one) {
  if (--one->network->second == 0) networks_.erase(one->network);
  return unproven_.erase(one);
}

void Gate::forget_finished() {
  for (auto one = unproven_.begin(); one != unproven_.end();) {
    one = one->talk->over() ? forget(one) : std::next(one);
  }
}

}  // namespace pccl
