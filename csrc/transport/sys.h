// Sockets and random bytes of the operating system: addresses, options, listening. Nothing here
// uses a loop.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/channel.h"
#include "transport/line.h"
#include "transport/poll.h"

namespace pccl {

/// Random bytes from OpenSSL. A failure is a broken invariant: without random bytes no key is
/// secret.
void random_bytes(std::span<std::uint8_t> out);
[[nodiscard]] std::uint64_t random_u64();

/// An IPv4 or IPv6 address with its port, or that of a unix socket ("this machine").
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  [[nodiscard]] const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] std::string host() const;  // IPv4 in IPv6 is shown as IPv4
  [[nodiscard]] std::uint16_t port() const;
  [[nodiscard]] std::string text() const;  // "1.2.3.4:5", "[::1]:5"
  void set_port(std::uint16_t port);
  [[nodiscard]] bool is_loopback() const;
  /// Does it mean another machine, or another link, to each machine that dials it (loopback,
  /// link-local, no address)?
  [[nodiscard]] bool is_local() const;
};

/// Is this an address that is local (above), or a name that everywhere means this machine?
[[nodiscard]] bool is_local_host(const std::string& host);
/// Is this the name of this machine, with or without a domain?
[[nodiscard]] bool is_own_name(const std::string& host);

[[nodiscard]] SocketAddress local_address(int fd);
[[nodiscard]] SocketAddress remote_address(int fd);
/// Have both ends of the connection the same address, or is the other end's a loopback address?
[[nodiscard]] bool is_same_machine(int fd);

/// The part of an address that its holder cannot choose: IPv4 whole, of IPv6 the first 64 bits. Any
/// other text stays.
[[nodiscard]] std::string network_of(const std::string& host);

/// "1.2.3.4" or "::1" (a scope is allowed: "fe80::1%eth0"); nothing is resolved.
[[nodiscard]] Result<SocketAddress> numeric_address(const std::string& host, std::uint16_t port);
/// Resolves names, so it may block: not on a loop's thread.
[[nodiscard]] Result<std::vector<SocketAddress>> resolve_blocking(const std::string& host,
                                                                  std::uint16_t port);
/// The address of this machine from which it would reach host:port, "" if it has no way there.
/// Sends nothing. May block to resolve a name: not on a loop's thread.
[[nodiscard]] std::string local_address_towards(const std::string& host, std::uint16_t port);

/// The descriptors that this process may have open.
[[nodiscard]] std::size_t descriptors_max();
/// How many of them are not open, by what /proc says; where there is none, all.
[[nodiscard]] std::size_t descriptors_free();
/// Could so many descriptors be opened now?
[[nodiscard]] bool descriptors_are_free(int count);

/// A non-blocking TCP socket, closed on exec. `small_packets`: once it is connected, no packet of
/// either side carries more than kSmallPacketPayloadBytes.
[[nodiscard]] Result<Socket> new_tcp_socket(Loop& loop, int family, bool small_packets = false);
/// Sets the options of a connection, or of a listening socket, whose connections inherit them: no
/// Nagle, keepalive, and an end if bytes are not acknowledged within `user_timeout_ms`.
void tune_socket(int fd, std::uint64_t user_timeout_ms);
/// For an established connection within one machine CUBIC or Reno in place of BBR, which halves the
/// rate there. Over a long way no more is taken ahead than what is sent soon, and with `bbr` BBR is
/// chosen, where the system lets this process have it, since one lost packet halves the others'
/// rate.
void tune_congestion(int fd, bool bbr);
/// But for `by_model`, which has_bbr tells.
[[nodiscard]] Line line_of(int fd);
[[nodiscard]] bool has_bbr(int fd);
/// A connection sends no faster than this from now on; 0: as fast as it can.
void pace(int fd, std::uint64_t bytes_per_second);

/// Listens on every host (none: all addresses, IPv6 and IPv4) at the same port: the first free one
/// of first..last, any if `first` is 0. Non-blocking sockets, whose connections have the options of
/// tune_socket from the beginning.
[[nodiscard]] Result<std::vector<Socket>> listen_on(Loop& loop,
                                                    const std::vector<std::string>& hosts,
                                                    std::uint16_t first, std::uint16_t last,
                                                    std::uint64_t user_timeout_ms = 0);

[[nodiscard]] std::string errno_text(int error);

/// Milliseconds of a monotonic clock that also counts while the machine is suspended, where there
/// is one (Linux); the loop's stands still then.
[[nodiscard]] std::uint64_t boot_ms();

}  // namespace pccl
