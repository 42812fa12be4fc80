#include "transport/connector.h"

#include <netdb.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/limits.h"
#include "base/text.h"
#include "transport/address.h"
#include "transport/listen.h"
#include "transport/loop_state.h"
#include "transport/sys.h"

namespace pccl {
namespace {
constexpr std::uint64_t kNextAddressMs = 250;  // RFC 8305 (happy eyeballs) has the same
constexpr std::size_t kResolvedMax = 16;       // of one name
}  // namespace

/// A name that libuv's pool resolves. The object may outlive the connector that asked.
struct Connector::Resolving {
  uv_getaddrinfo_t request{};
  Connector* owner = nullptr;
  std::string address;
  std::string host;
};

bool leads_astray(const std::string& name, const SocketAddress& found) {
  return found.is_local() && !is_local_host(name) && !is_own_name(name);
}

Connector::Connector(Loop& loop, const std::vector<std::string>& addresses, From from,
                     bool small_packets, std::uint64_t user_timeout_ms, Events events)
    : loop_(loop),
      from_(from),
      small_packets_(small_packets),
      user_timeout_ms_(user_timeout_ms),
      events_(std::move(events)) {
  for (const std::string& address : addresses) resolve(address);
  loop_.defer([this, alive = std::weak_ptr(alive_)] {
    if (!alive.expired()) advance();
  });
}

Connector::~Connector() {
  for (Resolving* resolving : resolving_) {
    resolving->owner = nullptr;
    if (!loop_.registry().in_child()) {
      uv_cancel(reinterpret_cast<uv_req_t*>(&resolving->request));
    }
  }
}

void Connector::resolve(const std::string& address) {
  const auto parsed = parse_address(address);
  if (!parsed) return note(address, parsed.error().text, false);
  const HostPort& to = parsed.value();
  if (auto numeric = numeric_address(to.host, to.port)) {
    waiting_.push_back({numeric.value(), small_packets_});
    return;
  }
  auto* resolving = new Resolving;
  resolving->owner = this;
  resolving->address = address;
  resolving->host = to.host;
  resolving->request.data = resolving;
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  const int failed = uv_getaddrinfo(
      loop_.raw(), &resolving->request,
      [](uv_getaddrinfo_t* request, int status, addrinfo* found) {
        const std::unique_ptr<Resolving> done(static_cast<Resolving*>(request->data));
        if (Connector* owner = done->owner) {
          Loop::State::of(owner->loop_).guard([&] {
            std::erase(owner->resolving_, done.get());
            if (status != 0) owner->note(done->address, uv_strerror(status), false);
            std::size_t count = 0;
            for (const addrinfo* entry = found; entry != nullptr && count < kResolvedMax;
                 entry = entry->ai_next, ++count) {
              SocketAddress to_try;
              std::memcpy(&to_try.storage, entry->ai_addr, entry->ai_addrlen);
              to_try.length = entry->ai_addrlen;
              owner->found(*done, to_try);
            }
            owner->advance();
          });
        }
        uv_freeaddrinfo(found);
      },
      to.host.c_str(), std::to_string(to.port).c_str(), &hints);
  if (failed != 0) {
    delete resolving;
    return note(address, uv_strerror(failed), false);
  }
  resolving_.push_back(resolving);
}

void Connector::found(const Resolving& name, const SocketAddress& address) {
  if (from_ == From::peer && leads_astray(name.host, address)) {
    return note(name.address,
                "here it leads to " + address.host() + ", which is no address of the peer", false);
  }
  waiting_.push_back({address, small_packets_});
}

void Connector::advance() {
  if (handed_out_) return;
  while (attempts_.empty() && !waiting_.empty()) start_one();
  if (attempts_.empty() && resolving_.empty()) {
    handed_out_ = true;  // its answer has been given
    const bool refused =
        !outcomes_.empty() && std::all_of(outcomes_.begin(), outcomes_.end(),
                                          [](const Outcome& outcome) { return outcome.refused; });
    const std::string what = outcomes_.empty() ? "no address is known" : report();
    const auto failed = events_.failed;
    failed(what, refused);
  }
}

void Connector::start_one() {
  const Target target = waiting_.front();
  const SocketAddress& address = target.address;
  waiting_.pop_front();
  auto socket = new_tcp_socket(loop_, address.storage.ss_family, target.small_packets);
  if (!socket) return note(address.text(), socket.error().text, false);
  const int fd = socket.value().fd();
  if (from_ == From::peer) put_off_bbr(fd);
  if (::connect(fd, address.raw(), address.length) != 0 && errno != EINPROGRESS) {
    return note(address.text(), errno_text(errno), errno == ECONNREFUSED);
  }
  attempts_.push_back({target, std::move(socket).value(), nullptr});
  const auto attempt = std::prev(attempts_.end());
  attempt->poll =
      std::make_unique<Poll>(loop_, fd, [this, attempt](bool, bool) { finish(attempt); });
  attempt->poll->want(false, true);
  slow_ = loop_.timer(kNextAddressMs, 0, [this] {
    if (!handed_out_ && !waiting_.empty()) start_one();
    advance();
  });
}

void Connector::finish(std::list<Attempt>::iterator attempt) {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(attempt->socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  const Target target = attempt->target;
  const std::string address = target.address.text();
  attempt->poll.reset();
  Socket socket = std::move(attempt->socket);
  attempts_.erase(attempt);
  if (error == 0 && local_address(socket.fd()).text() == remote_address(socket.fd()).text()) {
    error = ECONNREFUSED;  // TCP connects a free port of our own machine to itself
  }
  if (error != 0) {
    note(address, errno_text(error), error == ECONNREFUSED);
    return advance();
  }
  // The attempts beside this one start anew if this connection proves to be of no use.
  for (const Attempt& other : attempts_) waiting_.push_front(other.target);
  attempts_.clear();
  slow_.reset();
  handed_out_ = true;
  handed_out_to_ = target;
  tune_socket(socket.fd(), user_timeout_ms_);
  const auto connected = events_.connected;
  connected(std::move(socket), address);
}

void Connector::next(const std::string& address, const std::string& why) {
  note(address, why, false);
  advance_later();
}

void Connector::again_with_small_packets() {
  waiting_.push_front({handed_out_to_.address, /*small_packets=*/true});
  advance_later();
}

void Connector::advance_later() {
  loop_.defer([this, alive = std::weak_ptr(alive_)] {
    if (alive.expired()) return;
    handed_out_ = false;
    advance();
  });
}

void Connector::note(const std::string& address, const std::string& what, bool refused) {
  outcomes_.push_back({address + ": " + what, refused});
}

std::string Connector::report() const {
  std::string text;
  const auto add = [&](const std::string& line) { add_to_list(text, line, "; "); };
  for (const Outcome& outcome : outcomes_) add(outcome.text);
  for (const Attempt& attempt : attempts_) add(attempt.target.address.text() + ": no answer");
  for (const Target& target : waiting_) add(target.address.text() + ": not tried yet");
  for (const Resolving* resolving : resolving_) add(resolving->address + ": not resolved yet");
  return text;
}

}  // namespace pccl
