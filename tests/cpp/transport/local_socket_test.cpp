// Unix sockets of processes of one machine: their names.
#include "transport/local_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "transport/stream.h"

namespace pccl {
namespace {

TEST(LocalSocket, a_process_is_found_by_its_name_and_tells_its_user) {
  Loop loop;
  const PeerId self{0x1234567890abcdefULL};
  EXPECT_FALSE(connect_locally(loop, self)) << "nobody listens";
  const auto listening = listen_locally(loop, self);
  ASSERT_TRUE(listening.ok()) << listening.error().text;
  EXPECT_FALSE(listen_locally(loop, self).ok()) << "the name is taken";
  EXPECT_FALSE(connect_locally(loop, PeerId{1}));
  const auto near = connect_locally(loop, self);
  ASSERT_TRUE(near.has_value());
  const int far = ::accept4(listening.value().fd(), nullptr, nullptr, SOCK_CLOEXEC);
  ASSERT_GE(far, 0);
  for (const int fd : {near->fd(), far}) {
    EXPECT_TRUE(is_local_socket(fd));
    EXPECT_TRUE(is_same_user(fd));
  }
  const SocketStream stream(loop, Socket(loop, far));
  EXPECT_EQ(stream.remote_host(), "this machine");
  EXPECT_TRUE(stream.loopback());
  EXPECT_TRUE(stream.same_machine());
  EXPECT_FALSE(is_local_socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
}

}  // namespace
}  // namespace pccl
