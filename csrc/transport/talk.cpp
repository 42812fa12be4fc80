#include "transport/talk.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "transport/sys.h"

namespace pccl {

Talk::Talk(Loop& loop, Socket socket, std::uint64_t deadline_ms)
    : loop_(loop), socket_(std::move(socket)) {
  poll_ = std::make_unique<Poll>(loop_, socket_.fd(), [this](bool readable, bool) {
    const auto self = shared_from_this();
    if (readable) ready();
  });
  deadline_ = loop_.timer(deadline_ms, 0, [this, deadline_ms] {
    fail("no complete handshake within " + std::to_string(deadline_ms) + " ms");
  });
}

void Talk::on_failed(std::function<void(const std::string& reason)> failed) {
  failed_ = std::move(failed);
}

void Talk::send(std::span<const std::byte> bytes) {
  if (over()) return;
  const auto sent = ::send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(bytes.size())) {
    fail(sent < 0 ? errno_text(errno) : "the connection takes no bytes");
  }
}

void Talk::expect(std::size_t size, Got got,
                  std::function<bool(std::span<const std::byte>)> plausible) {
  if (over()) return;
  have_.clear();
  want_ = size;
  got_ = std::move(got);
  plausible_ = std::move(plausible);
  poll_->want(true, false);
}

void Talk::finish() {
  if (over()) return;
  finishing_ = true;
  ::shutdown(socket_.fd(), SHUT_WR);
  poll_->want(true, false);
}

Socket Talk::take() {
  poll_.reset();
  deadline_.reset();
  failed_ = nullptr;
  return std::move(socket_);
}

void Talk::drop() { (void)take(); }

void Talk::fail(const std::string& reason) {
  if (over()) return;
  poll_.reset();
  deadline_.reset();
  socket_.reset();
  loop_.defer([self = shared_from_this(), reason] {
    const auto failed = std::exchange(self->failed_, nullptr);
    if (failed) failed(reason);
  });
}

void Talk::ready() {
  std::array<std::byte, 512> buffer;
  while (!over()) {
    const std::size_t size = finishing_ ? buffer.size() : want_ - have_.size();
    const auto got = ::recv(socket_.fd(), buffer.data(), std::min(size, buffer.size()), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
      only_looked_ = got == 0 && silent_;
      return fail(got == 0 ? "the other side has closed the connection" : errno_text(errno));
    }
    silent_ = false;
    if (finishing_) continue;
    have_.insert(have_.end(), buffer.data(), buffer.data() + got);
    if (plausible_ && !plausible_(have_)) return fail(kNotPccl);
    if (have_.size() == want_) {
      poll_->want(false, false);
      const auto bytes = std::move(have_);
      have_.clear();
      const auto call = std::move(got_);
      call(bytes);
      return;
    }
  }
}

}  // namespace pccl
