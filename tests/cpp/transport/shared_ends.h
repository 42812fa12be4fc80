// What the tests of streams through shared memory share: both ends over a socket pair, and an end
// that lies.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support.h"
#include "transport/area.h"
#include "transport/local_socket.h"
#include "transport/shared_memory.h"
#include "transport/shared_stream.h"

namespace pccl::test {

inline constexpr std::size_t kStreamRing = kRingBytesMin;

inline std::unique_ptr<Stream> over(Loop& loop, int fd) {
  EXPECT_EQ(::fcntl(fd, F_SETFL, O_NONBLOCK), 0);
  return std::make_unique<SocketStream>(loop, Socket(loop, fd));
}

/// A socket pair whose ends are streams of two loops.
struct Ends {
  Ends() { EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0); }
  std::unique_ptr<Stream> dialler(Loop& loop, std::size_t ring = kStreamRing) {
    return offer_shared_memory(loop, over(loop, fds[0]), ring);
  }
  std::unique_ptr<Stream> acceptor(Loop& loop) {
    return await_shared_memory(loop, over(loop, fds[1]));
  }
  int fds[2] = {-1, -1};
};

/// Both ends on one loop, with what they are ready for.
struct BothEnds : Ends {
  explicit BothEnds(std::size_t ring = kStreamRing) {
    ends[0] = dialler(loop, ring);
    ends[1] = acceptor(loop);
    for (int i = 0; i < 2; ++i) {
      ends[i]->on_ready([this, i](bool readable, bool writable) {
        can_read[i] = can_read[i] || readable;
        can_write[i] = can_write[i] || writable;
        ends[i]->want(!can_read[i], !can_write[i]);
      });
      ends[i]->want(true, true);
    }
  }
  bool until(const std::function<bool()>& done) { return run_until(loop, done); }
  Loop loop;
  std::unique_ptr<Stream> ends[2];
  bool can_read[2] = {false, false};
  bool can_write[2] = {false, false};
};

/// The other end is a bare socket that says what it wants.
struct LyingEnd : Ends {
  Loop loop;
  Stream::Outcome outcome = Stream::Outcome::later;
  std::string error;
  std::unique_ptr<Stream> stream;

  void watch(std::unique_ptr<Stream> made) {
    stream = std::move(made);
    stream->on_ready([this](bool, bool) {
      std::array<std::byte, 64> in;
      const Stream::Moved moved = stream->read(in);
      outcome = moved.outcome;
      error = moved.error;
      stream->want(false, false);
    });
    stream->want(true, false);
  }
  bool ends_with(Stream::Outcome expected) {
    return run_until(loop, [&] { return outcome == expected; });
  }
};

inline std::array<std::byte, 8> offer_of(std::uint32_t ring, std::byte first = std::byte{1}) {
  std::array<std::byte, 8> offer{first};
  for (std::size_t i = 0; i < 4; ++i) offer[4 + i] = static_cast<std::byte>(ring >> (8 * i));
  return offer;
}

}  // namespace pccl::test
