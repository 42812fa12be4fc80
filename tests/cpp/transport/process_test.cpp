// Whether a process of this machine has ended.
#include "transport/process.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

namespace pccl {
namespace {

/// A process that stands still, and its own name for itself.
struct Child {
  pid_t pid = -1;
  ProcessName name;
};

Child start_child() {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return {};
  Child child;
  child.pid = ::fork();
  if (child.pid == 0) {
    const ProcessName self = this_process();
    if (::write(ends[1], &self, sizeof self) == static_cast<ssize_t>(sizeof self)) ::pause();
    ::_exit(0);
  }
  const bool read =
      ::read(ends[0], &child.name, sizeof child.name) == static_cast<ssize_t>(sizeof child.name);
  EXPECT_TRUE(read);
  ::close(ends[0]);
  ::close(ends[1]);
  return child;
}

TEST(Process, one_that_runs_is_not_seen_to_end_until_it_has) {
  const ProcessName self = this_process();
  EXPECT_EQ(self.id, static_cast<std::uint64_t>(::getpid()));
  if (self.machine == 0) GTEST_SKIP() << "this system does not name its boots";
  EXPECT_FALSE(has_ended(self));
  const Child other = start_child();
  EXPECT_EQ(other.name.machine, self.machine);
  EXPECT_EQ(other.name.id, static_cast<std::uint64_t>(other.pid));
  EXPECT_FALSE(has_ended(other.name));
  ASSERT_EQ(::kill(other.pid, SIGKILL), 0);
  siginfo_t how{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(other.pid), &how, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(has_ended(other.name));  // its parent has not asked how
  ASSERT_EQ(::waitpid(other.pid, nullptr, 0), other.pid);
  EXPECT_TRUE(has_ended(other.name));
}

TEST(Process, one_whose_id_is_another_process_s_by_now_has_ended) {
  ProcessName before = this_process();
  if (before.machine == 0) GTEST_SKIP() << "this system does not name its boots";
  before.started -= 1;
  EXPECT_TRUE(has_ended(before));
}

TEST(Process, of_one_that_this_machine_does_not_know_nothing_is_seen) {
  const ProcessName self = this_process();
  EXPECT_FALSE(has_ended(ProcessName{}));
  EXPECT_FALSE(has_ended(ProcessName{self.machine + 1, 1U << 30, 1}));
  EXPECT_FALSE(has_ended(ProcessName{self.machine, 0, 1}));
  EXPECT_FALSE(has_ended(ProcessName{self.machine, ~std::uint64_t{0}, 1}));
}

TEST(Process, one_of_another_namespace_of_ids_is_of_another_machine) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::unshare(CLONE_NEWPID) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) ::_exit(3);
    const Child inside = start_child();
    const bool written = ::write(ends[1], &inside.name, sizeof inside.name) ==
                         static_cast<ssize_t>(sizeof inside.name);
    ::kill(inside.pid, SIGKILL);
    ::_exit(written ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 3) GTEST_SKIP() << "no namespaces here";
  ASSERT_EQ(status, 0);
  ProcessName inside;
  ASSERT_EQ(::read(ends[0], &inside, sizeof inside), static_cast<ssize_t>(sizeof inside));
  EXPECT_EQ(inside.id, 1U);  // as many a process of this machine has another id there
  EXPECT_TRUE(inside.machine == 0 || inside.machine != this_process().machine);
  EXPECT_FALSE(has_ended(inside));
}

}  // namespace
}  // namespace pccl
