// Token files: who may read them, what is refused, and how a line is added.
#include "trust/token_file.h"

#include <grp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace pccl {
namespace {

namespace fs = std::filesystem;

class TokenFile : public testing::Test {
 protected:
  TokenFile() {
    std::string name = (fs::temp_directory_path() / "pccl_tokens.XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    path_ = folder_ + "/deep/tokens";
  }
  ~TokenFile() override { fs::remove_all(folder_); }

  void add(const std::string& name, const std::vector<std::string>& runs = {}) {
    const Error error = add_token(path_, name, runs);
    EXPECT_FALSE(error.failed()) << error.text;
  }
  [[nodiscard]] std::string content(const std::string& path) const {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::trunc) << text;
    ::chmod(path.c_str(), 0600);
  }
  [[nodiscard]] std::string refused() const {
    const auto files = read_master_files(path_);
    EXPECT_FALSE(files.ok());
    return files.error().text;
  }
  [[nodiscard]] static unsigned mode(const std::string& path) {
    struct stat seen{};
    EXPECT_EQ(::stat(path.c_str(), &seen), 0);
    return seen.st_mode & 0777U;
  }
  static bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  std::string folder_;
  std::string path_;
};

TEST_F(TokenFile, the_first_token_makes_the_folder_the_file_and_the_key_for_this_user_alone) {
  add("a");
  EXPECT_EQ(mode(path_), 0600U);
  EXPECT_EQ(mode(key_path(path_)), 0600U);
  EXPECT_EQ(mode(folder_ + "/deep"), 0700U);
  const std::string key = content(key_path(path_));
  add("b", {"x", "y"});
  EXPECT_EQ(content(key_path(path_)), key);
  const auto files = read_master_files(path_);
  ASSERT_TRUE(files.ok()) << files.error().text;
  ASSERT_EQ(files.value().tokens.all().size(), 2U);
  EXPECT_EQ(files.value().tokens.all()[1].runs.size(), 2U);
  EXPECT_EQ(files.value().tokens.all()[0].master,
            key_hash(KeyPair::from(files.value().key).public_key()));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ + "/deep"), fs::directory_iterator()), 3);
}

TEST_F(TokenFile, a_comment_and_the_other_lines_stay_when_a_line_is_added) {
  add("a");
  write(path_, "# machines of Ada\n" + content(path_));
  const std::string before = content(path_);
  add("b");
  EXPECT_EQ(content(path_).substr(0, before.size()), before);
}

TEST_F(TokenFile, a_name_is_used_once_and_a_wrong_name_or_run_writes_nothing) {
  add("a");
  const std::string before = content(path_);
  EXPECT_TRUE(has(add_token(path_, "a", {}).text, "there is a token \"a\" already in "));
  EXPECT_TRUE(has(add_token(path_, "a b", {}).text, "a token's name has"));
  EXPECT_TRUE(has(add_token(path_, "c", {"x y"}).text, "after '@'"));
  EXPECT_EQ(content(path_), before);
}

TEST_F(TokenFile, several_processes_may_add_lines_at_once) {
  std::vector<std::thread> threads;
  add("first");
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([this, i] { add("t" + std::to_string(i)); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(read_master_files(path_).value().tokens.all().size(), 9U);
}

/// Can a process of user 4242 and group 4243 read the tokens there?
bool is_read_by_another_user(const std::string& path) {
  const pid_t child = ::fork();
  if (child == 0) {
    const gid_t group = 4243;
    if (::setgroups(1, &group) != 0 || ::setgid(4244) != 0 || ::setuid(4242) != 0) ::_exit(2);
    ::_exit(read_master_files(path).ok() ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_NE(WEXITSTATUS(status), 2);
  return WEXITSTATUS(status) == 0;
}

// As Kubernetes mounts a Secret into a Pod with fsGroup: links, files of root's that a group reads.
TEST_F(TokenFile, a_file_that_root_has_given_to_a_group_of_this_process_is_read) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives files to others";
  add("a");
  ::chmod(folder_.c_str(), 0755);
  fs::create_directory(folder_ + "/..data");
  for (const std::string& end : {std::string(), std::string(".key")}) {
    fs::rename(path_ + end, folder_ + "/..data/tokens" + end);
    fs::create_symlink("..data/tokens" + end, folder_ + "/tokens" + end);
  }
  const std::string tokens = folder_ + "/tokens";
  const auto set = [&](uid_t user, gid_t group, mode_t mode) {
    for (const std::string& file : {tokens, key_path(tokens)}) {
      EXPECT_EQ(::chown(file.c_str(), user, group), 0);
      EXPECT_EQ(::chmod(file.c_str(), mode), 0);
    }
  };
  set(0, 4243, 0440);  // a group that the process is in
  EXPECT_TRUE(is_read_by_another_user(tokens));
  set(0, 4244, 0640);  // its first group
  EXPECT_TRUE(is_read_by_another_user(tokens));
  for (const mode_t mode : {0460U, 0444U, 0450U}) {  // others read it, or the group does more
    set(0, 4243, mode);
    EXPECT_FALSE(is_read_by_another_user(tokens)) << mode;
  }
  set(4242, 4243, 0440);  // its own: the user has opened it to others, perhaps by a mistake
  EXPECT_FALSE(is_read_by_another_user(tokens));
  set(4245, 4243, 0440);  // of another user, who can change it
  EXPECT_FALSE(is_read_by_another_user(tokens));
  set(0, 4246, 0440);  // a group that root itself is not in
  EXPECT_FALSE(read_master_files(tokens).ok());
}

TEST_F(TokenFile, a_file_that_others_may_use_is_refused) {
  add("a");
  for (const unsigned open : {0640U, 0604U, 0620U, 0602U}) {
    ::chmod(path_.c_str(), open);
    EXPECT_TRUE(has(refused(), "may be read or changed by other users: chmod 600 " + path_));
    EXPECT_FALSE(read_token_file(path_).ok());
  }
  ::chmod(path_.c_str(), 0400);
  EXPECT_TRUE(read_master_files(path_).ok());
  ::chmod(key_path(path_).c_str(), 0644);
  EXPECT_TRUE(has(refused(), "the key file " + key_path(path_) + " may be read"));
}

TEST_F(TokenFile, what_is_no_such_file_is_refused) {
  EXPECT_TRUE(has(refused(), "there is no token file"));
  fs::create_directories(path_);
  EXPECT_TRUE(has(refused(), "is no regular file"));
  fs::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_TRUE(has(refused(), "is no regular file"));
  fs::remove(path_);
  write(path_, std::string(kTokenFileBytesMax + 2, '\n'));
  EXPECT_TRUE(has(refused(), "is larger than"));
  write(path_, "");
  EXPECT_TRUE(has(refused(), "holds no token"));
}

TEST_F(TokenFile, a_half_written_file_takes_no_further_line) {
  add("a");
  std::string half = content(path_);
  half.pop_back();
  write(path_, half);
  EXPECT_TRUE(has(add_token(path_, "b", {}).text, "half written"));
  EXPECT_EQ(content(path_), half);
}

TEST_F(TokenFile, a_link_is_not_replaced_by_a_file) {
  add("a");
  const std::string other = folder_ + "/link";
  fs::create_symlink(path_, other);
  EXPECT_TRUE(read_token_file(other).ok());
  EXPECT_TRUE(has(add_token(other, "b", {}).text, "is a link"));
}

TEST_F(TokenFile, tokens_and_key_belong_together) {
  add("a");
  const std::string key = content(key_path(path_));
  fs::remove(key_path(path_));
  EXPECT_TRUE(has(refused(), "has no key file"));
  EXPECT_TRUE(has(add_token(path_, "b", {}).text, "has no key file"));
  write(key_path(path_), key.substr(0, key.size() - 1));
  EXPECT_TRUE(has(refused(), "is damaged"));
  EXPECT_FALSE(has(refused(), key.substr(20, 12)));
  const std::string tokens = content(path_);
  fs::remove(path_);
  fs::remove(key_path(path_));
  add("a");
  write(path_, tokens);
  EXPECT_TRUE(has(refused(), "the token \"a\" in " + path_ + " is of another master"));
}

TEST(TokenVariable, is_overwritten_and_taken_away) {
  ::setenv("PCCL_TEST_TOKEN", "secret", 1);
  const char* value = std::getenv("PCCL_TEST_TOKEN");
  wipe_variable("PCCL_TEST_TOKEN");
  EXPECT_EQ(std::getenv("PCCL_TEST_TOKEN"), nullptr);
  EXPECT_EQ(value[0], '\0');
  wipe_variable("PCCL_TEST_TOKEN");
}

}  // namespace
}  // namespace pccl
