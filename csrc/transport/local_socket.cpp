#include "transport/local_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "base/limits.h"
#include "transport/sys.h"

namespace pccl {
namespace {

constexpr std::size_t kDescriptorsMax = 8;  // that the system would pass with one message

struct LocalName {
  sockaddr_un address{};
  socklen_t length = 0;
  [[nodiscard]] const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&address); }
};

/// Begins with a zero byte, so it names no file.
LocalName name_for(PeerId peer) {
  const std::string text = std::string(1, '\0') + "pccl/" + to_string(peer);
  LocalName name;
  name.address.sun_family = AF_UNIX;
  std::copy(text.begin(), text.end(), name.address.sun_path);
  name.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + text.size());
  return name;
}

Socket local_socket(Loop& loop) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  return fd < 0 ? Socket() : Socket(loop, fd);
}

}  // namespace

const std::string& local_place() {
  static const std::string place = [] {
    std::string boot;
    struct stat seen{};
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
    if (boot.empty() || ::stat("/proc/self/ns/net", &seen) != 0) return std::string();
    return boot + ", " + std::to_string(seen.st_ino);
  }();
  return place;
}

Result<Socket> listen_locally(Loop& loop, PeerId self) {
  if (local_place().empty()) {
    return {ErrorCode::unreachable, "the system does not tell its boot id or network namespace"};
  }
  Socket socket = local_socket(loop);
  const LocalName name = name_for(self);
  if (!socket.open() || ::bind(socket.fd(), name.raw(), name.length) != 0 ||
      ::listen(socket.fd(), kAcceptBacklog) != 0) {
    return {ErrorCode::unreachable, "no unix socket: " + errno_text(errno)};
  }
  return socket;
}

std::optional<Socket> connect_locally(Loop& loop, PeerId peer) {
  if (local_place().empty()) return {};
  Socket socket = local_socket(loop);
  const LocalName name = name_for(peer);
  if (!socket.open() || ::connect(socket.fd(), name.raw(), name.length) != 0 ||
      !is_same_user(socket.fd())) {
    return {};
  }
  return socket;
}

bool is_local_socket(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
         address.ss_family == AF_UNIX;
}

bool is_same_user(int fd) {
  ucred other{};
  socklen_t length = sizeof other;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 &&
         length == sizeof other && other.uid == ::geteuid();
}

std::ptrdiff_t send_with_descriptor(int fd, std::span<const std::byte> bytes, int descriptor) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof descriptor)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
  return ::sendmsg(fd, &message, MSG_NOSIGNAL);
}

std::ptrdiff_t receive_with_descriptor(int fd, std::span<std::byte> into, int& descriptor) {
  iovec part{into.data(), into.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kDescriptorsMax * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t read = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  if (read < 0) return read;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int passed = -1;
      std::memcpy(&passed, CMSG_DATA(head) + i * sizeof passed, sizeof passed);
      if (descriptor >= 0) ::close(descriptor);
      descriptor = passed;
    }
  }
  return read;
}

}  // namespace pccl
