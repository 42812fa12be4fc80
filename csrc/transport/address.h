// Addresses of sockets, and what texts mean: parsing, resolving, and whom an address is good for.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace pccl {

/// An IPv4 or IPv6 address with its port, or that of a unix socket ("this machine").
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  [[nodiscard]] const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] std::string host() const;  // IPv4 in IPv6 is shown as IPv4
  [[nodiscard]] std::uint16_t port() const;
  [[nodiscard]] std::string text() const;  // "1.2.3.4:5", "[::1]:5"
  [[nodiscard]] bool is_v6() const { return storage.ss_family == AF_INET6; }
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

/// "host:port", "[v6]:port" -> host and port.
struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};
[[nodiscard]] Result<HostPort> parse_address(const std::string& address);

}  // namespace pccl
