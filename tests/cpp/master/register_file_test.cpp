// The register as a file: what is written is read again, and what cannot be trusted is refused by
// name.
#include "master/register_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/log.h"

namespace pccl::master {
namespace {

class RegisterFile : public testing::Test {
 protected:
  RegisterFile() {
    std::string name = (std::filesystem::temp_directory_path() / "pccl_register_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    path_ = folder_ / "state";
  }
  ~RegisterFile() override {
    std::error_code ignored;  // a folder left behind fails no test
    std::filesystem::remove_all(folder_, ignored);
  }
  void write(const std::string& text) const {
    std::ofstream(path_, std::ios::binary) << text;
    ::chmod(path_.c_str(), 0600);
  }
  [[nodiscard]] std::string content() const {
    std::ostringstream text;
    text << std::ifstream(path_, std::ios::binary).rdbuf();
    return text.str();
  }

  std::filesystem::path folder_;
  std::filesystem::path path_;
};

Register sample() {
  Register value;
  value.incarnation = 0x01ABCDEF;
  value.passed = 77;
  Epoch epoch;
  epoch.id = EpochId::make(0x01ABCDEF, 9);
  epoch.base = EpochId::make(0x01ABCDEF, 8);
  epoch.boundary = true;
  for (std::uint64_t i = 0; i < 3; ++i) {
    Member member;
    member.handle.peer.value = 0xFFFFFFFFFFFFFFF0ULL + i;
    member.handle.addresses = {"10.0.0.1:5000", "[fe80::1%eth0]:5001"};
    member.handle.key[i] = 0xA5;
    member.place = Place{"replica %\n " + std::string(1, '\xC3') + "\xA4", 3, 1, 2};
    epoch.members.push_back(member);
  }
  epoch.members[1].handle.addresses.clear();
  epoch.members[2].place.replica.clear();
  for (const Member& member : epoch.members) value.pinned.push_back(member.peer());
  value.epoch = epoch;
  return value;
}

TEST_F(RegisterFile, text_and_register_are_the_same_both_ways) {
  Register over;
  over.over = true;
  over.incarnation = 0xFFFFFFFFU;
  for (const Register& value : {Register{}, sample(), over}) {
    const auto parsed = parse_register(format_register({"my run", value}));
    ASSERT_TRUE(parsed.ok()) << parsed.error().text;
    EXPECT_EQ(parsed.value(), (NamedRegister{"my run", value}));
  }
}

TEST_F(RegisterFile, every_truncation_and_every_flipped_bit_is_an_error) {
  const std::string text = format_register({"run", sample()});
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(parse_register(text.substr(0, length)).ok()) << length;
  }
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::string other = text;
    other[at] = static_cast<char>(other[at] ^ (1 << (at % 8)));
    EXPECT_FALSE(parse_register(other).ok()) << at;
  }
}

TEST_F(RegisterFile, a_new_file_holds_nothing_and_keeps_what_is_written) {
  {
    auto opened = open_register_file(path_.string(), "run");
    ASSERT_TRUE(opened.ok()) << opened.error().text;
    EXPECT_EQ(opened.value()->read().value(), Register{});
    EXPECT_TRUE(opened.value()->compare_and_write(Register{}, sample()).value());
  }
  auto again = open_register_file(path_.string(), "run");
  ASSERT_TRUE(again.ok()) << again.error().text;
  EXPECT_EQ(again.value()->read().value(), sample());
}

TEST_F(RegisterFile, the_file_is_readable_by_its_owner_only) {
  auto opened = open_register_file(path_.string(), "run");
  ASSERT_TRUE(opened.value()->compare_and_write(Register{}, sample()).value());
  struct stat status{};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
}

TEST_F(RegisterFile, a_write_that_expects_something_else_is_refused_and_changes_nothing) {
  auto opened = open_register_file(path_.string(), "run");
  ASSERT_TRUE(opened.value()->compare_and_write(Register{}, sample()).value());
  Register other = sample();
  other.passed = 78;
  EXPECT_FALSE(opened.value()->compare_and_write(Register{}, other).value());
  EXPECT_EQ(opened.value()->read().value(), sample());

  auto memory = make_memory_register();
  EXPECT_TRUE(memory->compare_and_write(Register{}, sample()).value());
  EXPECT_FALSE(memory->compare_and_write(Register{}, other).value());
  EXPECT_EQ(memory->read().value(), sample());
}

TEST_F(RegisterFile, a_second_master_is_told_that_another_one_holds_the_file) {
  auto first = open_register_file(path_.string(), "run");
  ASSERT_TRUE(first.ok());
  const auto second = open_register_file(path_.string(), "run");
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::refused);
  EXPECT_NE(second.error().text.find(path_.string()), std::string::npos);
  EXPECT_NE(second.error().text.find("another master"), std::string::npos);
  first.value().reset();
  EXPECT_TRUE(open_register_file(path_.string(), "run").ok());
}

/// As the files of the runs "a" and "a.new" of one master are.
TEST_F(RegisterFile, a_file_that_would_be_beside_another_one_is_refused) {
  const auto opened = open_register_file(path_, "a", false);
  ASSERT_TRUE(opened.ok()) << opened.error().text;
  for (const std::string ending : {".new", ".lock", ".damaged"}) {
    const auto beside = open_register_file(path_.string() + ending, "a" + ending, true);
    ASSERT_FALSE(beside.ok());
    EXPECT_NE(beside.error().text.find("ends in " + ending), std::string::npos)
        << beside.error().text;
  }
}

TEST_F(RegisterFile, a_damaged_file_is_named_and_left_alone) {
  for (const std::string& text : {std::string(), std::string("garbage\n"), std::string(100, '\0'),
                                  format_register({"run", sample()}).substr(0, 50),
                                  format_register({"run", sample()}) + "\n"}) {
    write(text);
    const auto opened = open_register_file(path_.string(), "run");
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code, ErrorCode::malformed);
    EXPECT_NE(opened.error().text.find(path_.string()), std::string::npos);
    EXPECT_NE(opened.error().text.find("Restore it"), std::string::npos);
    EXPECT_EQ(content(), text);
  }
}

TEST_F(RegisterFile, a_damaged_file_is_put_aside_when_the_operator_says_how_to_go_on) {
  write("garbage\n");
  const auto opened = open_register_file(path_.string(), "run", /*replace_damaged=*/true);
  ASSERT_TRUE(opened.ok()) << opened.error().text;
  EXPECT_EQ(opened.value()->read().value(), Register{});
  EXPECT_TRUE(std::filesystem::exists(path_.string() + ".damaged"));
}

TEST_F(RegisterFile, a_file_of_another_run_is_refused_with_both_names_unless_that_run_is_over) {
  write(format_register({"theirs", sample()}));
  const auto opened = open_register_file(path_.string(), "ours");
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::refused);
  EXPECT_NE(opened.error().text.find("\"theirs\""), std::string::npos);
  EXPECT_NE(opened.error().text.find("\"ours\""), std::string::npos);

  Register over = sample();
  over.over = true;
  write(format_register({"theirs", over}));
  auto again = open_register_file(path_.string(), "ours");
  ASSERT_TRUE(again.ok()) << again.error().text;
  EXPECT_EQ(again.value()->read().value().incarnation, sample().incarnation);
  EXPECT_TRUE(again.value()->compare_and_write(over, sample()).value());
  EXPECT_NE(content().find("ours"), std::string::npos);
}

TEST_F(RegisterFile, a_write_that_fails_says_which_file_and_why_and_leaves_the_old_content) {
  auto opened = open_register_file(path_.string(), "run");
  ASSERT_TRUE(opened.value()->compare_and_write(Register{}, sample()).value());
  // In place of the new file stands a folder, as a full disk cannot be had without privileges.
  std::filesystem::create_directory(path_.string() + ".new");
  Register other = sample();
  other.passed = 78;
  const auto failed = opened.value()->compare_and_write(sample(), other);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.error().text.find(path_.string()), std::string::npos);
  EXPECT_EQ(opened.value()->read().value(), sample());
  std::filesystem::remove(path_.string() + ".new");
  EXPECT_TRUE(opened.value()->compare_and_write(sample(), other).value());
}

/// As on a full disk: no file of this process may be larger.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, signal_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*signal_)(int);
};

TEST_F(RegisterFile, a_full_disk_fails_the_write) {
  auto opened = open_register_file(path_.string(), "run");
  {
    const FileSizeLimit limit(10);
    const auto failed = opened.value()->compare_and_write(Register{}, sample());
    ASSERT_FALSE(failed.ok());
    EXPECT_NE(failed.error().text.find("File too large"), std::string::npos) << failed.error().text;
  }
  EXPECT_EQ(opened.value()->read().value(), Register{});
  EXPECT_TRUE(opened.value()->compare_and_write(Register{}, sample()).value());
}

TEST_F(RegisterFile, what_another_user_has_put_beside_it_is_neither_written_nor_followed) {
  const auto theirs = folder_ / "theirs";
  std::ofstream(theirs) << "precious";
  const auto text_of_theirs = [&] {
    std::ostringstream text;
    text << std::ifstream(theirs).rdbuf();
    return text.str();
  };
  auto opened = open_register_file(path_.string(), "run");
  std::filesystem::create_symlink(theirs, path_.string() + ".new");
  EXPECT_TRUE(opened.value()->compare_and_write(Register{}, sample()).value());
  EXPECT_EQ(text_of_theirs(), "precious");
  EXPECT_EQ(opened.value()->read().value(), sample());
  // A prepared file whose descriptor another process keeps open is not the one that is written.
  std::filesystem::create_hard_link(theirs, path_.string() + ".new");
  EXPECT_TRUE(opened.value()->compare_and_write(sample(), Register{}).value());
  EXPECT_EQ(text_of_theirs(), "precious");
  opened.value().reset();

  std::filesystem::remove(path_.string() + ".lock");
  std::filesystem::create_symlink(theirs, path_.string() + ".lock");
  const auto locked = open_register_file(path_.string(), "run");
  ASSERT_FALSE(locked.ok());
  EXPECT_NE(locked.error().text.find(".lock"), std::string::npos) << locked.error().text;
  std::filesystem::remove(path_.string() + ".lock");

  std::filesystem::rename(path_, folder_ / "elsewhere");
  std::filesystem::create_symlink(folder_ / "elsewhere", path_);
  const auto linked = open_register_file(path_.string(), "run");
  ASSERT_FALSE(linked.ok());
  EXPECT_NE(linked.error().text.find("is a link"), std::string::npos) << linked.error().text;
}

TEST_F(RegisterFile, a_pipe_in_its_place_holds_nobody_up) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const auto opened = open_register_file(path_.string(), "run");
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().text.find("no regular file"), std::string::npos) << opened.error().text;
}

TEST_F(RegisterFile, one_that_all_may_change_is_refused_and_one_that_others_may_read_is_named) {
  write(format_register({"run", sample()}));
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view text) { lines.emplace_back(text); });
  for (const mode_t mode : {0644, 0660}) {
    ::chmod(path_.c_str(), mode);
    EXPECT_TRUE(open_register_file(path_.string(), "run").ok());
  }
  ::chmod(path_.c_str(), 0600);
  EXPECT_TRUE(open_register_file(path_.string(), "run").ok());
  set_log_sink({});
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(lines[0].find("may read or change the state file"), std::string::npos) << lines[0];
  ::chmod(path_.c_str(), 0602);
  const auto opened = open_register_file(path_.string(), "run");
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().text.find("changed by all users"), std::string::npos)
      << opened.error().text;
}

TEST_F(RegisterFile, one_of_another_user_is_refused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  write(format_register({"run", sample()}));
  ASSERT_EQ(::chown(path_.c_str(), 12345, 12345), 0);
  const auto opened = open_register_file(path_.string(), "run");
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().text.find("another user (id 12345)"), std::string::npos)
      << opened.error().text;
}

TEST_F(RegisterFile, a_folder_that_does_not_exist_is_refused_and_not_made) {
  write("");
  for (const auto& folder : {folder_ / "typo", path_}) {
    const auto failed = open_register_file((folder / "state").string(), "run");
    ASSERT_FALSE(failed.ok());
    EXPECT_TRUE(failed.error().text.starts_with("there is no folder " + folder.string()));
    EXPECT_NE(failed.error().text.find("--state"), std::string::npos);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "typo"));
}

}  // namespace
}  // namespace pccl::master
