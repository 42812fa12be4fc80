#include "transport/sys.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/limits.h"
#include "transport/address.h"

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
constexpr std::size_t kDeliveredRateOffset = 160;
constexpr std::size_t kPacketsArrivedOffset = 192;
constexpr std::size_t kBytesSentOffset = 200;
constexpr std::size_t kBytesResentOffset = 208;
// What a long line's connection takes ahead: more would be waited for at the end of an operation.
constexpr int kUnsentBytes = 64 << 10;
// Within one machine a connection takes no more ahead than this (the kernel doubles it for its own
// records): what is sent then still lies in the caches when the other side reads it.
constexpr int kSentHereBytes = 384 << 10;

}  // namespace

void set_option(int fd, int level, int option, int value) {
  (void)::setsockopt(fd, level, option, &value, sizeof value);
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

void tune_socket(int fd, std::uint64_t user_timeout_ms) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  // With a user time-out Linux ends an idle connection when that time is over and one probe is
  // unanswered, whatever TCP_KEEPCNT says: so several have to fit into it.
  const std::uint64_t total_s = user_timeout_ms > 0 ? user_timeout_ms / 1000 : kKeepaliveS;
  const int idle_s = static_cast<int>(std::max<std::uint64_t>(1, total_s / 3));
  const int interval_s = static_cast<int>(std::max<std::uint64_t>(1, total_s / 8));
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle_s);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval_s);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
  if (user_timeout_ms > 0) {
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(user_timeout_ms));
  }
  // So that a connection goes on soon after a cut has healed, without a back-off of minutes. Linux
  // 6.15 and newer know the option.
  set_option(fd, IPPROTO_TCP, kTcpRtoMaxMs, kRtoMaxMs);
}

namespace {

bool set_congestion(int fd, std::string_view name) {
  return ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                      static_cast<socklen_t>(name.size())) == 0;
}

void set_short_line_congestion(int fd) {
  if (!set_congestion(fd, "cubic")) static_cast<void>(set_congestion(fd, "reno"));
}

std::string congestion_of(int fd) {
  std::array<char, 16> name{};
  auto size = static_cast<socklen_t>(name.size());
  if (::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) != 0) return "";
  return {name.data(), ::strnlen(name.data(), name.size())};
}

/// What the host has for all connections. Asked once.
const std::string& congestion_of_host() {
  static const std::string name = [] {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return std::string();
    std::string its = congestion_of(fd);
    ::close(fd);
    return its;
  }();
  return name;
}

/// That, if it is BBR, or one of its kind, which this process may put off and have back; else
/// nothing. Asked once.
const std::string& bbr_of_host() {
  static const std::string name = [] {
    std::string its = congestion_of_host();
    if (!its.starts_with("bbr")) return std::string();
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return std::string();
    set_short_line_congestion(fd);
    if (!set_congestion(fd, its)) its.clear();
    ::close(fd);
    return its;
  }();
  return name;
}

/// Where BBR is not allowed or not there the connection stays as it was. The question is not asked
/// again: each time the kernel might look for a module.
void take_bbr(int fd) {
  static std::atomic<bool> absent{false};
  if (!absent && !set_congestion(fd, "bbr")) absent = errno == ENOENT || errno == EPERM;
}

}  // namespace

void put_off_bbr(int fd) {
  if (!bbr_of_host().empty() && has_bbr(fd)) set_short_line_congestion(fd);
}

void tune_congestion(int fd, bool bbr) {
  if (is_same_machine(fd)) {
    set_option(fd, SOL_SOCKET, SO_SNDBUF, kSentHereBytes);
    return set_short_line_congestion(fd);
  }
  if (line_of(fd).least_trip_us >= kLongLineUs) {
    set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes);
    if (bbr) take_bbr(fd);
  }
  const std::string& of_host = bbr_of_host();
  if (!of_host.empty() && !has_bbr(fd)) static_cast<void>(set_congestion(fd, of_host));
}

void go_by_model(int fd, bool by_model) {
  if (by_model) return take_bbr(fd);
  static_cast<void>(set_congestion(fd, congestion_of_host()));
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
  line.delivered_rate = number(kDeliveredRateOffset, std::uint64_t{0});
  return line;
}

bool has_bbr(int fd) { return congestion_of(fd).starts_with("bbr"); }

void pace(int fd, std::uint64_t bytes_per_second) {
  const std::uint64_t rate = bytes_per_second == 0 ? ~std::uint64_t{0} : bytes_per_second;
  (void)::setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
}

std::string errno_text(int error) {
  char buffer[256];
  std::string text = ::strerror_r(error, buffer, sizeof buffer);
  if (text[0] >= 'A' && text[0] <= 'Z' && text[1] >= 'a') text[0] = static_cast<char>(text[0] + 32);
  return text;
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
