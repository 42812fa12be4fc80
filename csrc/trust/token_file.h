// The files of tokens: FILE with the lines (token.h), and FILE.key with the key pair of the master,
// the same at all masters of a run. Both are regular files of this user or of root that nobody else
// may read or change, but for a file of root's that a group of this process may read; a file that
// is not so is refused. A process without a file may have one line in a variable of its
// environment.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "trust/token.h"

namespace pccl {

/// The tokens with which a process enters. Errors are `invalid`, name the path, and say what to do.
[[nodiscard]] Result<Tokens> read_token_file(const std::string& path);

/// The tokens of a process that enters: those of the file, else the line of its variable
/// PCCL_TOKEN, which is taken out of the environment; both empty: null, it holds none.
[[nodiscard]] Result<std::shared_ptr<const Tokens>> held_tokens(const std::string& file,
                                                                const std::string& line);

/// What a master needs: its tokens, and the secret of its key pair.
struct MasterFiles {
  Tokens tokens;
  Secret key;
};
/// Reads FILE and FILE.key. An error too if a token is of another master's key.
[[nodiscard]] Result<MasterFiles> read_master_files(const std::string& path);

/// Adds a new token to FILE, with a name that it does not have yet. Makes FILE, FILE.key and their
/// folder where there are none. FILE is replaced as a whole, under a lock: a reader finds the old
/// content or the new one.
[[nodiscard]] Error add_token(const std::string& path, const std::string& name,
                              const std::vector<std::string>& runs);

/// The line of one token in the file of a master: for a person's eyes, it holds the secret.
[[nodiscard]] Result<std::string> token_line(const std::string& path, const std::string& name);

/// Text that is overwritten when it is destroyed. Its memory never moves.
class SecretText {
 public:
  SecretText();
  ~SecretText();
  SecretText(const SecretText&) = delete;
  SecretText& operator=(const SecretText&) = delete;
  [[nodiscard]] std::string& get() { return text_; }

 private:
  std::string text_;
};
/// The content of a file that nobody else may read or change, of 1 MiB at most. Errors are
/// `invalid`, and begin with `what` ("the token file") and the path.
[[nodiscard]] Error read_private(const std::string& what, const std::string& path,
                                 SecretText& into);

/// Is there anything at this path?
[[nodiscard]] bool is_there(const std::string& path);
[[nodiscard]] std::string key_path(const std::string& path);

/// Overwrites the value of a variable where the process has it (/proc/PID/environ shows that
/// memory), and takes the variable out of the environment. No other thread may use the environment
/// meanwhile.
void wipe_variable(const char* name);

}  // namespace pccl
