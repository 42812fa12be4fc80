#include "trust/token_file.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "trust/owned_file.h"

namespace pccl {
namespace {

constexpr const char* kVariable = "PCCL_TOKEN";
constexpr std::string_view kKeyStart = "pccl master key 1 ";
constexpr std::chrono::milliseconds kLockMs{5000};  // another command holds the lock no longer
constexpr std::chrono::milliseconds kLockLookMs{20};

Error invalid(std::string text) { return {ErrorCode::invalid, std::move(text)}; }

/// Has root given the file to a group of this process? Kubernetes hands a Secret so to a Pod that
/// does not run as root: the file is root's, the group (fsGroup) reads it. Who is in that group,
/// root has decided, and no process of it can change the file or its mode. Group root of a process
/// that is root itself says nothing of that kind.
bool is_handed_out(const struct stat& seen) {
  if (seen.st_uid != 0) return false;
  if (seen.st_gid == 0 && ::geteuid() == 0) return false;
  if (seen.st_gid == ::getegid()) return true;
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(0, ::getgroups(0, nullptr))));
  const int count = ::getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<std::size_t>(std::max(0, count)));
  return std::find(groups.begin(), groups.end(), seen.st_gid) != groups.end();
}

Result<Tokens> tokens_of(const std::string& path) {
  SecretText text;
  if (Error error = read_private("the token file", path, text); error.failed()) return error;
  return parse_tokens(text.get(), "the token file " + path);
}

Result<Secret> key_of(const std::string& path) {
  SecretText text;
  if (Error error = read_private("the key file", path, text); error.failed()) return error;
  std::string_view line = text.get();
  const bool whole = line.starts_with(kKeyStart) && line.ends_with('\n');
  if (whole) {
    line.remove_prefix(kKeyStart.size());
    line.remove_suffix(1);
  }
  const auto secret = whole ? from_base64(line) : std::nullopt;
  if (!secret) {
    return invalid("the key file " + path +
                   " is damaged: restore it from a copy. Without it no token of its master is "
                   "worth anything: move the token file away too, and make new tokens");
  }
  return *secret;
}

/// The folder and those above it, for this user alone.
Error make_folder(const std::string& folder) {
  std::filesystem::path made;
  for (const auto& part : std::filesystem::path(folder)) {
    made /= part;
    if (::mkdir(made.c_str(), 0700) != 0 && errno != EEXIST && !is_there(made.string())) {
      return invalid("the folder " + made.string() + " cannot be made: " + why(errno));
    }
  }
  return {};
}

/// For this user alone.
Error write_private(const std::string& path, std::string_view text) {
  return replace_file(path, path + ".new." + std::to_string(::getpid()), text, 0600);
}

Error lock(const File& file, const std::string& path) {
  if (!file.open()) return invalid("the lock " + path + " cannot be opened: " + why(errno));
  for (auto left = kLockMs; ::flock(file.fd(), LOCK_EX | LOCK_NB) != 0; left -= kLockLookMs) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return invalid(path + " cannot be locked: " + why(errno));
    }
    if (left.count() <= 0) return invalid(path + " is locked by another process");
    std::this_thread::sleep_for(kLockLookMs);
  }
  return {};
}

Error check_masters(const Tokens& tokens, const Secret& key, const std::string& path) {
  const std::string own = key_hash(KeyPair::from(key).public_key());
  for (const Token& token : tokens.all()) {
    if (token.master == own) continue;
    return invalid("the token \"" + token.name + "\" in " + path +
                   " is of another master: " + key_path(path) +
                   " holds another key than the one with which the token was made");
  }
  return {};
}

}  // namespace

SecretText::SecretText() { text_.reserve(kTokenFileBytesMax + 2); }
SecretText::~SecretText() { OPENSSL_cleanse(text_.data(), text_.capacity()); }

Error read_private(const std::string& what, const std::string& path, SecretText& to) {
  std::string& into = to.get();
  const std::string named = what + " " + path;
  const File file = open_file(path, O_RDONLY);
  if (!file.open()) return invalid(named + " cannot be opened: " + why(errno));
  const auto seen = owned(file, named, "make a copy that is your own");
  if (!seen) return seen.error();
  const unsigned others = seen.value().st_mode & 077U;
  if (others != 0 && !(others == 040 && is_handed_out(seen.value()))) {
    return invalid(named + " may be read or changed by other users: chmod 600 " + path +
                   ", and if others could read it, replace what it holds");
  }
  std::array<char, 4096> block{};
  while (into.size() <= kTokenFileBytesMax) {
    const ssize_t got = ::read(file.fd(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return invalid(named + " cannot be read: " + why(errno));
    if (got == 0) {
      OPENSSL_cleanse(block.data(), block.size());
      return {};
    }
    const std::size_t room = kTokenFileBytesMax + 1 - into.size();
    into.append(block.data(), std::min(static_cast<std::size_t>(got), room));
  }
  OPENSSL_cleanse(block.data(), block.size());
  return invalid(named + " is larger than " + std::to_string(kTokenFileBytesMax) + " bytes");
}

bool is_there(const std::string& path) {
  struct stat seen{};
  return ::lstat(path.c_str(), &seen) == 0;
}

std::string key_path(const std::string& path) { return path + ".key"; }

Result<Tokens> read_token_file(const std::string& path) { return tokens_of(path); }

Result<std::shared_ptr<const Tokens>> held_tokens(const std::string& file,
                                                  const std::string& line) {
  if (!line.empty()) wipe_variable(kVariable);
  if (file.empty() && line.empty()) return std::shared_ptr<const Tokens>();
  auto tokens = file.empty() ? parse_token_line(line, "the variable " + std::string(kVariable))
                             : read_token_file(file);
  if (!tokens) return tokens.error();
  return std::make_shared<const Tokens>(std::move(tokens).value());
}

Result<MasterFiles> read_master_files(const std::string& path) {
  if (!is_there(path)) {
    return invalid("there is no token file " + path + ": pccl-master --token-file " + path +
                   " --new-token NAME makes one");
  }
  auto tokens = tokens_of(path);
  if (!tokens) return tokens.error();
  if (!is_there(key_path(path))) {
    return invalid(
        "the token file " + path + " has no key file, " + key_path(path) +
        ": copy both from the master that made them. If the key is lost, move the token file "
        "away, make new tokens (--new-token NAME), and replace them on all machines");
  }
  auto key = key_of(key_path(path));
  if (!key) return key.error();
  if (Error error = check_masters(tokens.value(), key.value(), path); error.failed()) return error;
  return MasterFiles{std::move(tokens).value(), std::move(key).value()};
}

Error add_token(const std::string& path, const std::string& name,
                const std::vector<std::string>& runs) {
  if (!is_plain_name(name, kTokenNameBytesMax)) {
    return invalid("a token's name has 1 to " + std::to_string(kTokenNameBytesMax) +
                   " letters, digits, '-', '_' and '.'");
  }
  if (Error error = make_folder(folder_of(path)); error.failed()) return error;
  const std::string lock_path = path + ".lock";
  const File locked = open_file(lock_path, O_RDWR | O_CREAT | O_NOFOLLOW);
  if (Error error = lock(locked, lock_path); error.failed()) return error;
  if (std::filesystem::is_symlink(std::filesystem::symlink_status(path))) {
    return invalid(path + " is a link: name the file itself");
  }
  SecretText text;
  if (is_there(path)) {
    const auto held = read_master_files(path);
    if (!held) return held.error();
    if (held.value().tokens.find(name) != nullptr) {
      return invalid("there is a token \"" + name + "\" already in " + path);
    }
    if (Error error = read_private("the token file", path, text); error.failed()) {
      return error;
    }
  }
  Secret key;
  if (is_there(key_path(path))) {
    auto held = key_of(key_path(path));
    if (!held) return held.error();
    key = held.value();
  } else {
    key = random_secret();
    SecretText line;
    line.get() += kKeyStart;
    line.get() += to_base64(key.bytes());
    line.get() += "\n";
    if (Error error = write_private(key_path(path), line.get()); error.failed()) return error;
  }
  const Token token{name, random_secret(), key_hash(KeyPair::from(key).public_key()), runs};
  std::string line = format_token(token);
  text.get() += line + "\n";
  OPENSSL_cleanse(line.data(), line.size());
  // The name may be taken, and a run may be none: what is written can be read.
  const auto whole = parse_tokens(text.get(), "the token file " + path);
  if (!whole) return whole.error();
  return write_private(path, text.get());
}

Result<std::string> token_line(const std::string& path, const std::string& name) {
  const auto files = read_master_files(path);
  if (!files) return files.error();
  const Token* token = files.value().tokens.find(name);
  if (token == nullptr) {
    return invalid("the token file " + path + " holds no token of this name");
  }
  return format_token(*token);
}

void wipe_variable(const char* name) {
  if (char* value = std::getenv(name); value != nullptr) {
    OPENSSL_cleanse(value, std::strlen(value));
  }
  ::unsetenv(name);
}

}  // namespace pccl
