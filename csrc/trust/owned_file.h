// Files that decide who may enter, or where a run goes on: opened without waiting, refused where
// another user can change them, replaced as a whole. The token files and the register use them.
#pragma once

#include <sys/stat.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace pccl {

/// A file descriptor with one owner.
class File {
 public:
  explicit File(int fd = -1) : fd_(fd) {}
  ~File();
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] bool open() const { return fd_ >= 0; }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

/// Opens, also when a signal comes in between; waits for no other end of a pipe. Not open: errno
/// says why.
[[nodiscard]] File open_file(const std::string& path, int flags, mode_t mode = 0600);

/// The text of an errno.
[[nodiscard]] std::string why(int error);

/// What an open file is, if it is a regular file of this user or of root: in a folder that others
/// may write to, a file may be theirs. `named`: "the token file X"; `advice`: what to do about a
/// file of another user. The mode is the caller's to judge.
[[nodiscard]] Result<struct stat> owned(const File& file, const std::string& named,
                                        const std::string& advice);

/// Makes or replaces `path`; a crash at any moment leaves the old file or the new one. `fresh` lies
/// beside it and is made anew: what a killed process or another user has put there, or at `path`,
/// is neither written to nor followed. An error names the step that failed; `path` is as it was
/// then, but where its folder could not be opened or synced.
[[nodiscard]] Error replace_file(const std::string& path, const std::string& fresh,
                                 std::string_view text, mode_t mode);

/// The folder in which a file lies; "." where the path names none.
[[nodiscard]] std::string folder_of(const std::string& path);

}  // namespace pccl
