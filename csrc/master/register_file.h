// The register of a run: what a master must know to go on after its own death, in a small file, or
// in memory for tests. It changes by compare-and-write only. It does not decide anything: what is
// in it and when it is written is membership's (master.h).
//
// The file is replaced as a whole (a new file, synced, renamed over the old one), so a crash leaves
// the old content or the new one. One process at a time holds its lock, FILE.lock: a master that
// runs already keeps a second one away from the same file.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "membership/master.h"

namespace pccl::master {

/// Where a register lives. May be called from any thread, from one at a time. Calls may block on a
/// disk.
class RegisterStore {
 public:
  virtual ~RegisterStore() = default;
  /// What it holds; one that was never written is empty.
  [[nodiscard]] virtual Result<Register> read() = 0;
  /// Writes `to` if it holds `from`: true. False: it holds something else, and still does. An
  /// error: nobody knows what it holds now; read it anew.
  [[nodiscard]] virtual Result<bool> compare_and_write(const Register& from,
                                                       const Register& to) = 0;

  /// Do several masters share it? Then one of them at a time holds a lease on it. Safety does not
  /// rest on the lease, but on compare_and_write; it keeps them from taking turns.
  [[nodiscard]] virtual bool shared() const { return false; }
  /// Takes or renews the lease: true. False: another master holds it, `holder()` says which.
  [[nodiscard]] virtual Result<bool> hold() { return true; }
  [[nodiscard]] virtual std::string holder() { return ""; }
  /// Gives the lease up, so that a standby need not wait for its end.
  virtual void release() {}
};

/// In memory: gone with the process.
[[nodiscard]] std::unique_ptr<RegisterStore> make_memory_register();

/// Opens or makes `path` (and its folder) and takes its lock. `refused`: another master holds it,
/// or it is of another run that is not over. `invalid`: it cannot be opened, read or understood;
/// the text says what to do about it. `replace_damaged`: a file that cannot be understood is put
/// aside as PATH.damaged, and the register is empty.
[[nodiscard]] Result<std::unique_ptr<RegisterStore>> open_register_file(
    const std::string& path, const std::string& run, bool replace_damaged = false);

/// The content of a register file, and back. Any change of any byte is an error.
struct NamedRegister {
  std::string run;
  Register value;
  bool operator==(const NamedRegister&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("run", self.run, kRunNameBytesMax);
    visit("register", self.value);
  }
};
/// What `text`, found at `where`, holds for this run. Empty text: an empty register.
[[nodiscard]] Result<Register> register_of(const std::string& text, const std::string& run,
                                           const std::string& where);
[[nodiscard]] std::string format_register(const NamedRegister& content);
[[nodiscard]] Result<NamedRegister> parse_register(const std::string& text);

}  // namespace pccl::master
