// Which congestion control a connection begins with, and which it has once its line is known.
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <string>

#include "transport/listen.h"
#include "transport/loop.h"
#include "transport/sys.h"

namespace pccl {
namespace {

std::string control_of(int fd) {
  std::array<char, 16> name{};
  auto size = static_cast<socklen_t>(name.size());
  EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size), 0);
  return name.data();
}

void set_control(int fd, const std::string& name) {
  EXPECT_EQ(::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                         static_cast<socklen_t>(name.size())),
            0);
}

class Congestion : public ::testing::Test {
 protected:
  Loop loop_;
  Socket socket_ = new_tcp_socket(loop_, AF_INET).value();
};

TEST_F(Congestion, nothing_begins_with_the_bbr_of_the_host) {
  const std::string before = control_of(socket_.fd());
  put_off_bbr(socket_.fd());
  const std::string after = control_of(socket_.fd());
  if (before.starts_with("bbr")) {
    EXPECT_TRUE(after == "cubic" || after == "reno") << after;
  } else {
    EXPECT_EQ(after, before);
  }
}

TEST_F(Congestion, what_stands_in_place_of_bbr_stays) {
  set_control(socket_.fd(), "reno");
  put_off_bbr(socket_.fd());
  EXPECT_EQ(control_of(socket_.fd()), "reno");
}

TEST_F(Congestion, a_connection_within_the_machine_goes_on_without_bbr_and_takes_little_ahead) {
  const Socket listening = std::move(listen_on(loop_, {"127.0.0.1"}, 0, 0).value().front());
  put_off_bbr(socket_.fd());
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ASSERT_EQ(::getsockname(listening.fd(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  static_cast<void>(::connect(socket_.fd(), reinterpret_cast<sockaddr*>(&address), size));
  static_cast<void>(::setsockopt(socket_.fd(), IPPROTO_TCP, TCP_CONGESTION, "bbr", 3));
  tune_congestion(socket_.fd(), /*bbr=*/true);
  EXPECT_FALSE(has_bbr(socket_.fd()));
  int ahead = 0;
  size = sizeof ahead;
  ASSERT_EQ(::getsockopt(socket_.fd(), SOL_SOCKET, SO_SNDBUF, &ahead, &size), 0);
  EXPECT_GE(ahead, 200 << 10) << "else each call takes less than a segment";
  EXPECT_LE(ahead, 1 << 20) << "what is sent leaves the caches before it is read";
}

TEST_F(Congestion, a_connection_that_goes_by_a_model_goes_back_to_what_its_host_has) {
  const std::string before = control_of(socket_.fd());
  const bool allowed = ::setsockopt(Socket(new_tcp_socket(loop_, AF_INET).value()).fd(),
                                    IPPROTO_TCP, TCP_CONGESTION, "bbr", 3) == 0;
  go_by_model(socket_.fd(), true);
  EXPECT_EQ(has_bbr(socket_.fd()), allowed || before.starts_with("bbr"));
  go_by_model(socket_.fd(), false);
  EXPECT_EQ(control_of(socket_.fd()), before);
}

}  // namespace
}  // namespace pccl
