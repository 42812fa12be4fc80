// Files that are opened without waiting, refused where another user can change them, and replaced.
#include "trust/owned_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace pccl {
namespace {

namespace fs = std::filesystem;

class OwnedFile : public testing::Test {
 protected:
  OwnedFile() {
    std::string name = (fs::temp_directory_path() / "pccl_owned.XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    path_ = folder_ + "/file";
    fresh_ = path_ + ".new";
  }
  ~OwnedFile() override { fs::remove_all(folder_); }

  static void put(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
  static std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  Error replace(const std::string& text) { return replace_file(path_, fresh_, text, 0600); }

  std::string folder_;
  std::string path_;
  std::string fresh_;
};

TEST_F(OwnedFile, IsMadeAndReplacedWithItsModeAndLeavesNothingBesideIt) {
  for (const std::string text : {"one", "another"}) {
    EXPECT_FALSE(replace(text).failed());
    EXPECT_EQ(text_of(path_), text);
  }
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms(0600));
  EXPECT_FALSE(fs::exists(fresh_));

  const mode_t umask = ::umask(022);
  EXPECT_FALSE(replace_file(path_, fresh_, "for all", 0644).failed());
  ::umask(umask);
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms(0644));
}

TEST_F(OwnedFile, WhatLiesAtTheFreshOneOrAtThePathIsNotFollowed) {
  const std::string others = folder_ + "/others";
  put(others, "theirs");
  fs::create_symlink(others, fresh_);
  fs::create_symlink(others, path_);
  EXPECT_FALSE(replace("ours").failed());
  EXPECT_EQ(text_of(others), "theirs");
  EXPECT_EQ(text_of(path_), "ours");
  EXPECT_FALSE(fs::is_symlink(path_));
}

TEST_F(OwnedFile, IsAsItWasWhenReplacingItFails) {
  fs::create_directories(path_ + "/inside");  // no file can be renamed over a folder
  const Error error = replace("ours");
  EXPECT_EQ(error.code, ErrorCode::invalid);
  EXPECT_EQ(error.text, "renaming to " + path_ + " failed: Is a directory");
  EXPECT_TRUE(fs::exists(path_ + "/inside"));
  EXPECT_FALSE(fs::exists(fresh_));
}

TEST_F(OwnedFile, APipeIsRefusedWithoutWaitingForItsOtherEnd) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const auto seen = owned(open_file(path_, O_RDONLY), "the file X", "go");
  ASSERT_FALSE(seen);
  EXPECT_EQ(seen.error().text, "the file X is no regular file");
}

TEST_F(OwnedFile, OfThisUserAndOfRootAreTaken) {
  put(path_, "text");
  EXPECT_TRUE(owned(open_file(path_, O_RDONLY), "the file X", "copy it"));
  EXPECT_TRUE(owned(open_file("/etc/passwd", O_RDONLY), "the file X", "copy it"));
}

TEST_F(OwnedFile, OfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives files to others";
  put(path_, "text");
  ASSERT_EQ(::chown(path_.c_str(), 12345, 12345), 0);
  const auto seen = owned(open_file(path_, O_RDONLY), "the file X", "copy it");
  ASSERT_FALSE(seen);
  EXPECT_EQ(seen.error().text,
            "the file X belongs to another user (id 12345), who can change it: copy it");
}

TEST_F(OwnedFile, FoldersOfPaths) {
  EXPECT_EQ(folder_of("a/b"), "a");
  EXPECT_EQ(folder_of("b"), ".");
  EXPECT_EQ(folder_of("/b"), "/");
}

}  // namespace
}  // namespace pccl
