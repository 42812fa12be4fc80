#include "trust/owned_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

namespace pccl {

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File open_file(const std::string& path, int flags, mode_t mode) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, mode);
  } while (fd < 0 && errno == EINTR);
  return File(fd);
}

std::string why(int error) { return std::generic_category().message(error); }

Result<struct stat> owned(const File& file, const std::string& named, const std::string& advice) {
  const auto invalid = [](std::string text) { return Error{ErrorCode::invalid, std::move(text)}; };
  struct stat seen{};
  if (::fstat(file.fd(), &seen) != 0) return invalid(named + " cannot be read: " + why(errno));
  if (!S_ISREG(seen.st_mode)) return invalid(named + " is no regular file");
  if (seen.st_uid != ::geteuid() && seen.st_uid != 0) {
    return invalid(named + " belongs to another user (id " + std::to_string(seen.st_uid) +
                   "), who can change it: " + advice);
  }
  return seen;
}

Error replace_file(const std::string& path, const std::string& fresh, std::string_view text,
                   mode_t mode) {
  const auto failed = [&](const std::string& doing, const std::string& where) {
    const int error = errno;
    ::unlink(fresh.c_str());
    return Error{ErrorCode::invalid, doing + " " + where + " failed: " + why(error)};
  };
  ::unlink(fresh.c_str());  // of a process that was killed, or what another user has put there
  {
    const File file = open_file(fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
    if (!file.open()) {  // another process may have made one that is its own
      return Error{ErrorCode::invalid, "making " + fresh + " failed: " + why(errno)};
    }
    while (!text.empty()) {
      const ssize_t put = ::write(file.fd(), text.data(), text.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return failed("writing", fresh);
      text.remove_prefix(static_cast<std::size_t>(put));
    }
    if (::fsync(file.fd()) != 0) return failed("syncing", fresh);
  }
  if (::rename(fresh.c_str(), path.c_str()) != 0) return failed("renaming to", path);
  const File folder = open_file(folder_of(path), O_RDONLY | O_DIRECTORY);
  if (!folder.open()) return failed("opening the folder of", path);
  if (::fsync(folder.fd()) != 0) return failed("syncing the folder of", path);
  return {};
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace pccl
