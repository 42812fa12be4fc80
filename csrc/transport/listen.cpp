#include "transport/listen.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/limits.h"
#include "transport/address.h"
#include "transport/sys.h"

namespace pccl {
namespace {

constexpr int kAnyPortTries = 16;  // a free port of one host may be taken on the next

Result<Socket> listen_at(Loop& loop, const SocketAddress& address, bool also_v4,
                         std::uint64_t user_timeout_ms) {
  auto made = new_tcp_socket(loop, address.storage.ss_family);
  if (!made) return made.error();
  Socket socket = std::move(made).value();
  set_option(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.is_v6()) set_option(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, also_v4 ? 0 : 1);
  tune_socket(socket.fd(), user_timeout_ms);
  if (::bind(socket.fd(), address.raw(), address.length) != 0 ||
      ::listen(socket.fd(), kAcceptBacklog) != 0) {
    const int error = errno;  // which the caller looks at, too
    const std::string why =
        error == EADDRNOTAVAIL ? "this machine has no such address" : errno_text(error);
    errno = error;
    return {ErrorCode::invalid, "cannot listen on " + address.text() + ": " + why};
  }
  return socket;
}

/// A machine may have a family of addresses in its tables and not on its interfaces.
bool lacks_family(int error) {
  return error == EAFNOSUPPORT || error == EADDRNOTAVAIL || error == EPROTONOSUPPORT;
}

Result<std::vector<Socket>> listen_at_port(Loop& loop, std::vector<SocketAddress> addresses,
                                           bool everywhere, std::uint16_t port,
                                           std::uint64_t user_timeout_ms) {
  std::vector<Socket> sockets;
  Error last;
  for (SocketAddress& address : addresses) {
    address.set_port(port);
    errno = 0;
    auto socket = listen_at(loop, address, everywhere, user_timeout_ms);
    if (!socket && everywhere && address.is_v6()) {
      auto v4 = numeric_address("0.0.0.0", port);
      socket = listen_at(loop, v4.value(), false, user_timeout_ms);
    }
    if (!socket) {
      last = socket.error();
      if (addresses.size() > 1 && lacks_family(errno)) continue;
      return last;
    }
    port = local_address(socket.value().fd()).port();
    sockets.push_back(std::move(socket).value());
  }
  if (sockets.empty()) return last;
  return sockets;
}

}  // namespace

Result<Socket> new_tcp_socket(Loop& loop, int family, bool small_packets) {
  const int fd = ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return {ErrorCode::unreachable, "cannot make a socket: " + errno_text(errno)};
  if (small_packets)
    set_option(fd, IPPROTO_TCP, TCP_MAXSEG, static_cast<int>(kSmallPacketPayloadBytes));
  return Socket(loop, fd);
}

Result<std::vector<Socket>> listen_on(Loop& loop, const std::vector<std::string>& hosts,
                                      std::uint16_t first, std::uint16_t last,
                                      std::uint64_t user_timeout_ms) {
  std::vector<SocketAddress> addresses;
  for (const std::string& host : hosts) {
    auto found = resolve_blocking(host, first);
    if (!found) return found.error();
    for (const SocketAddress& address : found.value()) {
      const bool known = std::any_of(addresses.begin(), addresses.end(), [&](const auto& other) {
        return other.host() == address.host();
      });
      if (!known) addresses.push_back(address);
    }
  }
  const bool everywhere = addresses.empty();
  if (everywhere) addresses.push_back(numeric_address("::", first).value());

  if (first == 0) {
    for (int tries = 1;; ++tries) {
      auto sockets = listen_at_port(loop, addresses, everywhere, 0, user_timeout_ms);
      if (sockets || tries == kAnyPortTries) return sockets;
    }
  }
  for (unsigned port = first;; ++port) {
    auto sockets = listen_at_port(loop, addresses, everywhere, static_cast<std::uint16_t>(port),
                                  user_timeout_ms);
    if (sockets) return sockets;
    if (port >= last) {
      if (port == first) return sockets;
      return {ErrorCode::invalid, "no port of " + std::to_string(first) + "-" +
                                      std::to_string(last) +
                                      " is free; the last answer: " + sockets.error().text};
    }
  }
}

}  // namespace pccl
