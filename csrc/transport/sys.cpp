#include "transport/sys.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/rand.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "base/assert.h"
#include "base/limits.h"

namespace pccl {
namespace {

constexpr std::uint64_t kKeepaliveS = 30;  // without a user time-out
constexpr int kKeepaliveProbes = 4;
constexpr int kTcpRtoMaxMs = 44;  // TCP_RTO_MAX_MS, which headers do not know yet
constexpr int kRtoMaxMs = 2000;
// Fields of Linux's tcp_info, some of which the C library's lacks.
constexpr std::size_t kMssOffset = 16;
constexpr std::size_t kRttOffset = 68;
constexpr std::size_t kUnsentOffset = 144;
constexpr std::size_t kMinRttOffset = 148;
constexpr std::size_t kPacketsArrivedOffset = 192;
constexpr std::size_t kBytesSentOffset = 200;
constexpr std::size_t kBytesResentOffset = 208;
// What a long line's connection takes ahead: more would be waited for at the end of an operation.
constexpr int kUnsentBytes = 64 << 10;
constexpr int kAnyPortTries = 16;  // a free port of one host may be taken on the next

const sockaddr_in* as_v4(const SocketAddress& a) {
  return reinterpret_cast<const sockaddr_in*>(&a.storage);
}
const sockaddr_in6* as_v6(const SocketAddress& a) {
  return reinterpret_cast<const sockaddr_in6*>(&a.storage);
}
bool is_v6(const SocketAddress& a) { return a.storage.ss_family == AF_INET6; }

void set_int(int fd, int level, int option, int value) {
  (void)::setsockopt(fd, level, option, &value, sizeof value);  // options are wishes
}

Result<Socket> listen_at(Loop& loop, const SocketAddress& address, bool also_v4,
                         std::uint64_t user_timeout_ms) {
  auto made = new_tcp_socket(loop, address.storage.ss_family);
  if (!made) return made.error();
  Socket socket = std::move(made).value();
  set_int(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (is_v6(address)) set_int(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, also_v4 ? 0 : 1);
  tune_socket(socket.fd(), user_timeout_ms);
  if (::bind(socket.fd(), address.raw(), address.length) != 0 ||
      ::listen(socket.fd(), kAcceptBacklog) != 0) {
    return {ErrorCode::invalid, "cannot listen on " + address.text() + ": " + errno_text(errno)};
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
    if (!socket && everywhere && is_v6(address)) {
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

void random_bytes(std::span<std::uint8_t> out) {
  PCCL_ASSERT(RAND_bytes(out.data(), static_cast<int>(out.size())) == 1, "no random bytes");
}

std::uint64_t random_u64() {
  std::array<std::uint8_t, 8> bytes{};
  random_bytes(bytes);
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

std::string SocketAddress::host() const {
  char text[INET6_ADDRSTRLEN + IF_NAMESIZE + 1] = "?";
  if (is_v6(*this)) {
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
  return ntohs(is_v6(*this) ? as_v6(*this)->sin6_port : as_v4(*this)->sin_port);
}

void SocketAddress::set_port(std::uint16_t port) {
  if (is_v6(*this)) {
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

namespace {

/// As DNS compares names: without case, and without the dot of the root.
std::string plain_name(std::string name) {
  while (name.ends_with('.')) name.pop_back();
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace

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

std::size_t descriptors_max() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;  // POSIX promises less
  return static_cast<std::size_t>(std::min<rlim_t>(limit.rlim_cur, 1U << 20));
}

std::size_t descriptors_free() {
  std::error_code unreadable;
  std::size_t used = 0;
  for (std::filesystem::directory_iterator at("/proc/self/fd", unreadable), end;
       !unreadable && at != end; at.increment(unreadable)) {
    ++used;
  }
  return descriptors_max() - std::min(descriptors_max(), used);
}

bool descriptors_are_free(int count) {
  std::vector<int> opened;
  for (int i = 0; i < count; ++i) {
    const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd < 0) break;
    opened.push_back(fd);
  }
  for (const int fd : opened) ::close(fd);
  return opened.size() == static_cast<std::size_t>(count);
}

Result<Socket> new_tcp_socket(Loop& loop, int family, bool small_packets) {
  const int fd = ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return {ErrorCode::unreachable, "cannot make a socket: " + errno_text(errno)};
  if (small_packets)
    set_int(fd, IPPROTO_TCP, TCP_MAXSEG, static_cast<int>(kSmallPacketPayloadBytes));
  return Socket(loop, fd);
}

void tune_socket(int fd, std::uint64_t user_timeout_ms) {
  set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  // With a user time-out Linux ends an idle connection when that time is over and one probe is
  // unanswered, whatever TCP_KEEPCNT says: so several have to fit into it.
  const std::uint64_t total_s = user_timeout_ms > 0 ? user_timeout_ms / 1000 : kKeepaliveS;
  const int idle_s = static_cast<int>(std::max<std::uint64_t>(1, total_s / 3));
  const int interval_s = static_cast<int>(std::max<std::uint64_t>(1, total_s / 8));
  set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle_s);
  set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval_s);
  set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
  if (user_timeout_ms > 0) {
    set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(user_timeout_ms));
  }
  // So that a connection goes on soon after a cut has healed, without a back-off of minutes. Linux
  // 6.15 and newer know the option.
  set_int(fd, IPPROTO_TCP, kTcpRtoMaxMs, kRtoMaxMs);
}

namespace {

bool set_congestion(int fd, std::string_view name) {
  return ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                      static_cast<socklen_t>(name.size())) == 0;
}

}  // namespace

void tune_congestion(int fd, bool bbr) {
  if (is_same_machine(fd)) {
    if (!set_congestion(fd, "cubic")) static_cast<void>(set_congestion(fd, "reno"));
  } else if (line_of(fd).least_trip_us >= kLongLineUs) {
    set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes);
    // Where it is not allowed or not there the connection stays as it was. The question is not
    // asked again: each time the kernel might look for a module.
    static std::atomic<bool> absent{false};
    if (bbr && !absent && !set_congestion(fd, "bbr")) absent = errno == ENOENT || errno == EPERM;
  }
}

Line line_of(int fd) {
  std::array<std::byte, 512> info{};
  auto size = static_cast<socklen_t>(info.size());
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, info.data(), &size) != 0) return {};
  const auto number = [&](std::size_t offset, auto none) {
    if (offset + sizeof none <= size) std::memcpy(&none, info.data() + offset, sizeof none);
    return none;
  };
  Line line;
  const std::uint32_t least_us = number(kMinRttOffset, std::uint32_t{0});
  line.least_trip_us = least_us == ~std::uint32_t{0} ? 0 : least_us;
  line.trip_us = number(kRttOffset, std::uint32_t{0});
  line.packet_bytes = number(kMssOffset, std::uint32_t{0});
  line.arrived_bytes =
      std::uint64_t{line.packet_bytes} * number(kPacketsArrivedOffset, std::uint32_t{0});
  line.unsent_bytes = number(kUnsentOffset, std::uint32_t{0});
  line.sent_bytes = number(kBytesSentOffset, std::uint64_t{0});
  line.resent_bytes = number(kBytesResentOffset, std::uint64_t{0});
  return line;
}

bool has_bbr(int fd) {
  std::array<char, 16> name{};
  auto size = static_cast<socklen_t>(name.size());
  return ::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) == 0 &&
         std::string_view(name.data(), 3) == "bbr";
}

void pace(int fd, std::uint64_t bytes_per_second) {
  const std::uint64_t rate = bytes_per_second == 0 ? ~std::uint64_t{0} : bytes_per_second;
  (void)::setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
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

std::string errno_text(int error) {
  char buffer[256];
  std::string text = ::strerror_r(error, buffer, sizeof buffer);
  if (text[0] >= 'A' && text[0] <= 'Z' && text[1] >= 'a') text[0] = static_cast<char>(text[0] + 32);
  return text;
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

std::uint64_t boot_ms() {
#ifdef CLOCK_BOOTTIME
  constexpr clockid_t kClock = CLOCK_BOOTTIME;
#else
  constexpr clockid_t kClock = CLOCK_MONOTONIC;
#endif
  timespec now{};
  ::clock_gettime(kClock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1000000;
}

}  // namespace pccl
