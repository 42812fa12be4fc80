#include "transport/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <climits>
#include <cstring>
#include <system_error>

#include "base/limits.h"

namespace pccl {
namespace {

const sockaddr_in* as_v4(const SocketAddress& a) {
  return reinterpret_cast<const sockaddr_in*>(&a.storage);
}
const sockaddr_in6* as_v6(const SocketAddress& a) {
  return reinterpret_cast<const sockaddr_in6*>(&a.storage);
}

/// As DNS compares names: without case, and without the dot of the root.
std::string plain_name(std::string name) {
  while (name.ends_with('.')) name.pop_back();
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace

std::string SocketAddress::host() const {
  char text[INET6_ADDRSTRLEN + IF_NAMESIZE + 1] = "?";
  if (is_v6()) {
    const in6_addr& a = as_v6(*this)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&a)) {
      ::inet_ntop(AF_INET, a.s6_addr + 12, text, sizeof text);
      return text;
    }
    ::inet_ntop(AF_INET6, &a, text, sizeof text);
    char interface[IF_NAMESIZE];
    if (as_v6(*this)->sin6_scope_id != 0 &&
        ::if_indextoname(as_v6(*this)->sin6_scope_id, interface) != nullptr) {
      return std::string(text) + "%" + interface;
    }
    return text;
  }
  if (storage.ss_family == AF_INET) {
    ::inet_ntop(AF_INET, &as_v4(*this)->sin_addr, text, sizeof text);
  }
  return storage.ss_family == AF_UNIX ? "this machine" : text;
}

std::uint16_t SocketAddress::port() const {
  if (storage.ss_family == AF_UNIX) return 0;
  return ntohs(is_v6() ? as_v6(*this)->sin6_port : as_v4(*this)->sin_port);
}

void SocketAddress::set_port(std::uint16_t port) {
  if (is_v6()) {
    reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
  }
}

std::string SocketAddress::text() const {
  if (storage.ss_family == AF_UNIX) return host();
  const std::string name = host();
  const bool brackets = name.find(':') != std::string::npos;
  return (brackets ? "[" + name + "]" : name) + ":" + std::to_string(port());
}

bool SocketAddress::is_loopback() const {
  const std::string name = host();
  return storage.ss_family == AF_UNIX || name == "::1" || name.starts_with("127.");
}

bool SocketAddress::is_local() const {
  const std::string name = host();
  const auto begins = [&](const char* with) { return name.starts_with(with); };
  const bool link_local_v6 = begins("fe8") || begins("fe9") || begins("fea") || begins("feb");
  return is_loopback() || begins("169.254.") || link_local_v6 || begins("0.") || name == "::" ||
         begins("::%");
}

bool is_local_host(const std::string& host) {
  if (const auto address = numeric_address(host, 0)) return address.value().is_local();
  const std::string name = plain_name(host);
  return name == "localhost" || name.ends_with(".localhost") || name.starts_with("localhost.") ||
         name == "ip6-localhost" || name == "ip6-loopback";
}

bool is_own_name(const std::string& host) {
  char text[HOST_NAME_MAX + 1] = "";
  if (::gethostname(text, sizeof text) != 0) return false;
  const std::string own = plain_name(text);
  const std::string name = plain_name(host);
  return !own.empty() &&
         (name == own || name.starts_with(own + ".") || own.starts_with(name + "."));
}

std::string network_of(const std::string& host) {
  const std::string address = host.substr(0, host.find('%'));
  in6_addr whole{};
  if (::inet_pton(AF_INET6, address.c_str(), &whole) != 1) return host;
  std::fill(whole.s6_addr + 8, whole.s6_addr + 16, std::uint8_t{0});
  char text[INET6_ADDRSTRLEN];
  ::inet_ntop(AF_INET6, &whole, text, sizeof text);
  return std::string(text) + "/64" + host.substr(address.size());
}

SocketAddress local_address(int fd) {
  SocketAddress address;
  address.length = sizeof address.storage;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return address;
}

SocketAddress remote_address(int fd) {
  SocketAddress address;
  address.length = sizeof address.storage;
  ::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return address;
}

bool is_same_machine(int fd) {
  const SocketAddress remote = remote_address(fd);
  return remote.is_loopback() || remote.host() == local_address(fd).host();
}

Result<SocketAddress> numeric_address(const std::string& host, std::uint16_t port) {
  SocketAddress address;
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0 || found == nullptr) {
    return {ErrorCode::invalid, "\"" + host + "\" is not an IP address"};
  }
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  ::freeaddrinfo(found);
  return address;
}

Result<std::vector<SocketAddress>> resolve_blocking(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0) {
    return {ErrorCode::unreachable, "cannot resolve \"" + host + "\": " + ::gai_strerror(failed)};
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
  }
  ::freeaddrinfo(found);
  return addresses;
}

std::string local_address_towards(const std::string& host, std::uint16_t port) {
  auto addresses = resolve_blocking(host, port);
  if (!addresses) return "";
  for (const SocketAddress& address : addresses.value()) {
    // Connecting a datagram socket chooses the route and sends nothing.
    const int fd = ::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    const bool connected = ::connect(fd, address.raw(), address.length) == 0;
    const std::string local = connected ? local_address(fd).host() : "";
    ::close(fd);
    if (connected) return local;
  }
  return "";
}

Result<HostPort> parse_address(const std::string& address) {
  const auto wrong = [&] {
    return Result<HostPort>(ErrorCode::invalid,
                            "\"" + address + "\" is not HOST:PORT or [IPV6]:PORT");
  };
  if (address.size() > kAddressBytesMax) return {ErrorCode::invalid, "an address is too long"};
  HostPort result;
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return wrong();
  result.host = address.substr(0, colon);
  if (result.host.front() == '[') {
    if (result.host.size() < 3 || result.host.back() != ']') return wrong();
    result.host = result.host.substr(1, result.host.size() - 2);
  } else if (result.host.find(':') != std::string::npos) {
    return wrong();
  }
  if (result.host.find('\0') != std::string::npos) return wrong();
  const char* begin = address.data() + colon + 1;
  const char* end = address.data() + address.size();
  const auto [stop, failed] = std::from_chars(begin, end, result.port);
  if (failed != std::errc{} || stop != end || begin == end || result.port == 0) return wrong();
  return result;
}

}  // namespace pccl
