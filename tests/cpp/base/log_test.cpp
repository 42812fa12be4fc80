// The log on a stderr that nobody reads.
#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>

namespace pccl {
namespace {

/// stderr is a pipe of two pages while this lives.
class NarrowStderr {
 public:
  NarrowStderr() : before_(::dup(STDERR_FILENO)) {
    EXPECT_EQ(::pipe2(ends_.data(), O_CLOEXEC), 0);
    EXPECT_GT(::fcntl(ends_[1], F_SETPIPE_SZ, 8192), 0);
    ::dup2(ends_[1], STDERR_FILENO);
  }
  ~NarrowStderr() {
    ::dup2(before_, STDERR_FILENO);
    for (const int fd : {before_, ends_[0], ends_[1]}) ::close(fd);
  }
  NarrowStderr(const NarrowStderr&) = delete;
  NarrowStderr& operator=(const NarrowStderr&) = delete;
  std::string read_all() {
    ::fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    std::string all;
    std::array<char, 4096> part;
    for (ssize_t n = 0; (n = ::read(ends_[0], part.data(), part.size())) > 0;) {
      all.append(part.data(), static_cast<std::size_t>(n));
    }
    return all;
  }

 private:
  int before_;
  std::array<int, 2> ends_{};
};

TEST(Log, loses_lines_and_no_time_where_stderr_takes_nothing_and_says_how_many) {
  const auto began = std::chrono::steady_clock::now();
  std::string first;
  std::string after;
  {
    NarrowStderr narrow;
    for (int i = 0; i < 1000; ++i) log_error("line " + std::to_string(i) + std::string(100, '.'));
    first = narrow.read_all();
    log_error("read again");
    after = narrow.read_all();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
  EXPECT_NE(first.find("ERROR line 0."), std::string::npos);
  EXPECT_EQ(first.find("line 999."), std::string::npos);
  EXPECT_NE(after.find(" lines are lost: stderr took none]\n"), std::string::npos) << after;
  EXPECT_NE(after.find("ERROR read again\n"), std::string::npos) << after;
}

TEST(Log, writes_a_line_that_is_of_several_kilobytes_whole) {
  std::string seen;
  {
    NarrowStderr narrow;
    log_error(std::string(6000, 'x') + "end");
    seen = narrow.read_all();
  }
  EXPECT_NE(seen.find("xend\n"), std::string::npos);
}

}  // namespace
}  // namespace pccl
