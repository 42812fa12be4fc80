// Somebody at an address of loopback that connections reach and that says nothing.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace pccl::testing {

/// Listens; the kernel takes the connections, and nobody accepts them.
class Mute {
 public:
  Mute() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    auto* raw = reinterpret_cast<sockaddr*>(&at);
    EXPECT_EQ(::bind(fd_, raw, size), 0);
    EXPECT_EQ(::listen(fd_, 64), 0);
    EXPECT_EQ(::getsockname(fd_, raw, &size), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  }
  ~Mute() { ::close(fd_); }
  Mute(const Mute&) = delete;
  Mute& operator=(const Mute&) = delete;
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
  std::string address_;
};

}  // namespace pccl::testing
