#include "transport/stream.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>

#include "transport/address.h"
#include "transport/local_socket.h"
#include "transport/sys.h"

namespace pccl {
namespace {

Stream::Moved outcome_of(ssize_t moved) {
  if (moved > 0) return {Stream::Outcome::moved, static_cast<std::size_t>(moved), {}};
  if (moved == 0) return {Stream::Outcome::ended, 0, {}};
  if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
  return {Stream::Outcome::failed, 0, errno_text(errno)};
}

template <typename Call>
Stream::Moved uninterrupted(Call&& call) {
  ssize_t moved = 0;
  do {
    moved = call();
  } while (moved < 0 && errno == EINTR);
  return outcome_of(moved);
}

msghdr message_of(std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  return message;
}

}  // namespace

SocketStream::SocketStream(Loop& loop, Socket socket)
    : loop_(loop),
      socket_(std::move(socket)),
      carrier_(is_local_socket(socket_.fd()) ? Carrier::unix_socket : Carrier::tcp),
      remote_host_(remote_address(socket_.fd()).host()) {}

Stream::Moved SocketStream::read(std::span<const iovec> parts) {
  msghdr message = message_of(parts);
  return uninterrupted([&] { return ::recvmsg(socket_.fd(), &message, 0); });
}

Stream::Moved SocketStream::write(std::span<const iovec> parts) {
  const msghdr message = message_of(parts);
  return uninterrupted([&] { return ::sendmsg(socket_.fd(), &message, MSG_NOSIGNAL); });
}

std::size_t SocketStream::unacknowledged_bytes() const {
  int bytes = 0;
  return ::ioctl(socket_.fd(), SIOCOUTQ, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

Line SocketStream::line() const {
  if (carrier_ != Carrier::tcp) return {};
  Line line = line_of(socket_.fd());
  line.by_model = has_bbr_;
  return line;
}

void SocketStream::tune(bool bbr) {
  if (carrier_ != Carrier::tcp) return;
  tune_congestion(socket_.fd(), bbr);
  has_bbr_ = has_bbr(socket_.fd());
}

void SocketStream::go_by_model(bool by_model) {
  if (carrier_ != Carrier::tcp || by_model == has_bbr_ || same_machine()) return;
  pccl::go_by_model(socket_.fd(), by_model);
  has_bbr_ = has_bbr(socket_.fd());
}

void SocketStream::pace(std::uint64_t bytes_per_second) {
  if (carrier_ == Carrier::tcp) pccl::pace(socket_.fd(), bytes_per_second);
}

Stream::Moved SocketStream::peek(std::span<std::byte> into) {
  return uninterrupted([&] { return ::recv(socket_.fd(), into.data(), into.size(), MSG_PEEK); });
}

void SocketStream::shut() { ::shutdown(socket_.fd(), SHUT_WR); }

void SocketStream::on_ready(Ready ready) {
  poll_.reset();
  if (!ready || !open()) return;
  poll_ = std::make_unique<Poll>(loop_, socket_.fd(), std::move(ready));
}

void SocketStream::want(bool read, bool write) {
  if (poll_) poll_->want(read, write);
}

void SocketStream::close() {
  poll_.reset();
  socket_.reset();
}

std::string SocketStream::remote() const { return remote_address(socket_.fd()).text(); }
std::string SocketStream::remote_host() const { return remote_host_; }
std::string SocketStream::local_host() const { return local_address(socket_.fd()).host(); }
bool SocketStream::same_machine() const { return is_same_machine(socket_.fd()); }
bool SocketStream::loopback() const {
  return remote_address(socket_.fd()).is_loopback() && local_address(socket_.fd()).is_loopback();
}

}  // namespace pccl
