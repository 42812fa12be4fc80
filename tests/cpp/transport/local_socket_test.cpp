// Unix sockets of processes of one machine: their names, and the descriptors that they pass.
#include "transport/local_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <vector>

#include "base/assert.h"
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

/// Two ends, and the files that one passes.
struct Passing {
  explicit Passing(std::size_t files) {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    for (std::size_t i = 0; i < files; ++i) {
      int pipe[2];
      EXPECT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
      passed.push_back(pipe[0]);
      ::close(pipe[1]);
    }
  }
  ~Passing() {
    for (const int fd : ends) ::close(fd);
    for (const int fd : passed) ::close(fd);
  }
  [[nodiscard]] static std::uint64_t file(int fd) {
    struct stat seen{};
    EXPECT_EQ(::fstat(fd, &seen), 0);
    return seen.st_ino;
  }
  [[nodiscard]] static std::ptrdiff_t open_files() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  }
  int ends[2] = {-1, -1};
  std::vector<int> passed;
  std::array<std::byte, 8> bytes{std::byte{1}, std::byte{2}};
};

TEST(LocalSocket, descriptors_come_in_their_order_and_those_that_do_not_fit_are_closed) {
  for (const std::size_t sent : {0U, 1U, 2U, 3U, 8U}) {
    Passing passing(sent);
    const auto before = Passing::open_files();
    ASSERT_EQ(send_with_descriptors(passing.ends[0], passing.bytes, passing.passed), 8);
    std::array<std::byte, 16> got{};
    std::array<int, 2> taken{7, 7};
    ASSERT_EQ(receive_with_descriptors(passing.ends[1], got, taken), 8);
    EXPECT_TRUE(std::equal(passing.bytes.begin(), passing.bytes.end(), got.begin()));
    for (std::size_t i = 0; i < taken.size(); ++i) {
      if (i >= sent) {
        EXPECT_EQ(taken[i], -1) << sent;
        continue;
      }
      EXPECT_EQ(Passing::file(taken[i]), Passing::file(passing.passed[i])) << sent;
      EXPECT_EQ(::fcntl(taken[i], F_GETFD), FD_CLOEXEC);
      ::close(taken[i]);
    }
    EXPECT_EQ(Passing::open_files(), before) << sent;
  }
}

TEST(LocalSocket, no_descriptor_comes_where_no_byte_does) {
  Passing passing(kDescriptorsMax + 1);
  std::array<std::byte, 8> got{};
  std::array<int, 2> taken{7, 7};
  ASSERT_EQ(::fcntl(passing.ends[1], F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(receive_with_descriptors(passing.ends[1], got, taken), -1);
  EXPECT_EQ(taken, (std::array<int, 2>{-1, -1}));
  EXPECT_THROW(
      static_cast<void>(send_with_descriptors(passing.ends[0], passing.bytes, passing.passed)),
      BrokenInvariant);
  ASSERT_EQ(::shutdown(passing.ends[0], SHUT_WR), 0);
  EXPECT_EQ(receive_with_descriptors(passing.ends[1], got, taken), 0);
  EXPECT_EQ(taken, (std::array<int, 2>{-1, -1}));
}

}  // namespace
}  // namespace pccl
