// The log on a stderr that nobody reads.
#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

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

// First, since the tests below use the patience up.
TEST(Log, waits_for_a_reader_that_is_a_moment_late) {
  std::string seen;
  {
    NarrowStderr narrow;
    std::atomic<bool> written = false;
    std::thread reader([&] {
      while (!written) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        seen += narrow.read_all();
      }
    });
    for (int i = 0; i < 300; ++i) log_error("line " + std::to_string(i) + std::string(10, '.'));
    written = true;
    reader.join();
    seen += narrow.read_all();
  }
  EXPECT_EQ(seen.find("lines are lost"), std::string::npos);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), '\n'), 300);
}

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

TEST(Log, does_not_wait_for_a_terminal_that_nobody_reads) {
  const int far_end = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(far_end, 0);
  ASSERT_EQ(::grantpt(far_end), 0);
  ASSERT_EQ(::unlockpt(far_end), 0);
  const int terminal = ::open(::ptsname(far_end), O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(terminal, 0);
  const int before = ::dup(STDERR_FILENO);
  ::dup2(terminal, STDERR_FILENO);
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 2000; ++i) log_error("line " + std::to_string(i) + std::string(100, '.'));
  const auto took = std::chrono::steady_clock::now() - began;
  EXPECT_EQ(::fcntl(STDERR_FILENO, F_GETFL) & O_NONBLOCK, 0) << "that is the program's own";
  ::dup2(before, STDERR_FILENO);
  for (const int fd : {before, terminal, far_end}) ::close(fd);
  EXPECT_LT(took, std::chrono::seconds(30));
}

}  // namespace
}  // namespace pccl
