// The register as a file: one line with a version and a checksum, then the register as CBOR.
#include "master/register_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.h"
#include "trust/owned_file.h"
#include "wire/cbor.h"

namespace pccl::master {
namespace {

constexpr std::string_view kFirstWords = "pccl register 1 crc32 ";
constexpr std::size_t kChecksumDigits = 8;
// The files beside a state file: its next content, its lock, and its damaged content.
constexpr std::string_view kNew = ".new";
constexpr std::string_view kLock = ".lock";
constexpr std::string_view kDamaged = ".damaged";
constexpr std::array kBeside = {kNew, kLock, kDamaged};
constexpr std::size_t kFileBytesMax = 64U << 20;  // 4096 members with 16 addresses are below 20 MiB

std::string crc32(std::string_view text) {
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char c : text) {
    crc ^= static_cast<std::uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0xEDB88320U : 0U);
  }
  std::array<char, kChecksumDigits + 1> digits{};
  static_cast<void>(
      std::snprintf(digits.data(), digits.size(), "%08x", static_cast<unsigned>(~crc)));
  return digits.data();
}

Error invalid(std::string text) { return Error{ErrorCode::invalid, std::move(text)}; }

/// Follows no link: another user may have put one there.
File open_no_link(const std::string& path, int flags) {
  return open_file(path, flags | O_NOFOLLOW);
}

/// `named`: "the state file X".
Error check_owner(const File& file, const std::string& named) {
  const auto seen = owned(file, named, "name another file with --state");
  if (!seen) return seen.error();
  if ((seen.value().st_mode & S_IWOTH) != 0) {  // a group may be a volume's (fsGroup of Kubernetes)
    return invalid(named + " may be changed by all users: chmod 600 it, if its content is right");
  }
  return {};
}

/// The whole file; none: there is no such file.
Result<std::optional<std::string>> read_file(const std::string& path) {
  const File file = open_no_link(path, O_RDONLY);
  if (!file.open()) {
    if (errno == ENOENT) return std::optional<std::string>{};
    if (errno == ELOOP) return invalid("the state file " + path + " is a link: name its target");
    return invalid("the state file " + path + " cannot be opened: " + why(errno));
  }
  if (Error error = check_owner(file, "the state file " + path); error.failed()) return error;
  std::string text;
  std::array<char, 65536> block{};
  while (true) {
    const ssize_t got = ::read(file.fd(), block.data(), block.size());
    if (got == 0) return std::optional<std::string>{std::move(text)};
    if (got < 0) {
      if (errno == EINTR) continue;
      return invalid("the state file " + path + " cannot be read: " + why(errno));
    }
    text.append(block.data(), static_cast<std::size_t>(got));
    if (text.size() > kFileBytesMax) return invalid("the state file " + path + " is too large");
  }
}

class MemoryRegister final : public RegisterStore {
 public:
  Result<Register> read() override { return held_; }
  Result<bool> compare_and_write(const Register& from, const Register& to) override {
    if (!(held_ == from)) return false;
    held_ = to;
    return true;
  }

 private:
  Register held_;
};

Error damaged(const std::string& where, const std::string& how) {
  return Error{ErrorCode::malformed,
               where + " is damaged (" + how +
                   "). Restore it from a copy. Without one: --adopt goes on with the members that "
                   "are alive, if no other master runs; --refound gives them up"};
}

class FileRegister final : public RegisterStore {
 public:
  FileRegister(std::string path, std::string run, File lock)
      : path_(std::move(path)), run_(std::move(run)), lock_(std::move(lock)) {}

  Result<Register> read() override {
    auto text = read_file(path_);
    if (!text) return text.error();
    if (!text.value()) return Register{};
    if (text.value()->empty()) return damaged("the state file " + path_, "it is empty");
    return register_of(*text.value(), run_, "the state file " + path_);
  }

  Result<bool> compare_and_write(const Register& from, const Register& to) override {
    auto held = read();
    if (!held) return held.error();
    if (!(held.value() == from)) return false;
    const std::string text = format_register({run_, to});
    if (Error error = replace_file(path_, path_ + std::string(kNew), text, 0600); error.failed()) {
      error.text = "the state file " + path_ + " cannot be written: " + error.text;
      return error;
    }
    return true;
  }

 private:
  std::string path_;
  std::string run_;
  File lock_;  // held for the life of this object
};

}  // namespace

std::string format_register(const NamedRegister& content) {
  const std::vector<std::byte> bytes = cbor::encode_struct(content);
  const std::string body(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return std::string(kFirstWords) + crc32(body) + "\n" + body;
}

Result<NamedRegister> parse_register(const std::string& text) {
  const std::size_t head = kFirstWords.size() + kChecksumDigits + 1;
  if (text.size() < head) return invalid("it ends too early");
  if (!text.starts_with(kFirstWords)) return invalid("it is no register of this version");
  const std::string body = text.substr(head);
  if (text.substr(kFirstWords.size(), kChecksumDigits + 1) != crc32(body) + "\n") {
    return invalid("its checksum is wrong");
  }
  const auto bytes = std::as_bytes(std::span(body));
  auto read = cbor::decode_struct<NamedRegister>(bytes, "its content");
  if (!read) return invalid(read.error().text);
  return read;
}

Result<Register> register_of(const std::string& text, const std::string& run,
                             const std::string& where) {
  if (text.empty()) return Register{};
  auto held = parse_register(text);
  if (!held) return damaged(where, held.error().text);
  if (held.value().run != run && held.value().value.epoch && !held.value().value.over) {
    return Error{ErrorCode::refused, where + " is of the run \"" + held.value().run +
                                         "\", which is not over, and this master serves \"" + run +
                                         "\": name the same run, or another place with --state"};
  }
  if (held.value().run != run) held.value().value.ended.reset();  // it was the end of another run
  return std::move(held.value().value);
}

std::unique_ptr<RegisterStore> make_memory_register() { return std::make_unique<MemoryRegister>(); }

Result<std::unique_ptr<RegisterStore>> open_register_file(const std::string& path,
                                                          const std::string& run,
                                                          bool replace_damaged) {
  for (const std::string_view ending : kBeside) {
    if (!path.ends_with(ending)) continue;
    return invalid("the state file " + path + " ends in " + std::string(ending) +
                   ", as a file beside another state file does: name another run, or another file "
                   "with --state");
  }
  std::error_code error;
  if (const std::string folder = folder_of(path); !std::filesystem::is_directory(folder, error)) {
    return invalid("there is no folder " + folder + " for the state file " + path +
                   ": without the file of its run a master begins the run anew. Mend --state, or "
                   "make the folder");
  }
  const std::string lock_path = path + std::string(kLock);
  File lock = open_no_link(lock_path, O_RDWR | O_CREAT);
  if (!lock.open()) {
    return invalid("the lock of the state file, " + lock_path +
                   ", cannot be opened: " + why(errno) + "; name another file with --state");
  }
  if (Error other = check_owner(lock, "the lock of the state file, " + lock_path + ",");
      other.failed()) {
    return other;
  }
  while (::flock(lock.fd(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) {
      return Error{ErrorCode::refused, "another master holds the state file " + path +
                                           " (its lock is " + lock_path +
                                           "): stop it, or name another file with --state"};
    }
    return invalid("the state file " + path + " cannot be locked: " + why(errno));
  }
  auto opened = std::make_unique<FileRegister>(path, run, std::move(lock));
  auto held = opened->read();
  if (!held && held.error().code == ErrorCode::malformed && replace_damaged) {
    const std::string aside = path + std::string(kDamaged);
    log_warning(held.error().text + "; it is " + aside + " now");
    std::filesystem::rename(path, aside, error);
    held = opened->read();
  }
  if (!held) return held.error();
  struct stat seen{};
  if (::stat(path.c_str(), &seen) == 0 && (seen.st_mode & (S_IRWXG | S_IROTH)) != 0) {
    log_warning("other users may read or change the state file " + path +
                ", which names the members and their addresses: chmod 600 " + path);
  }
  return std::unique_ptr<RegisterStore>(std::move(opened));
}

}  // namespace pccl::master
