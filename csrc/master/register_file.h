// The register of a run: the values by which a restarted master goes on, in a small file, or in
// memory for tests. Changed by compare-and-write only. Decides nothing: membership/master.h says
// what is written and when.
//
// The file is replaced as a whole (a new file, synced, renamed over the old one), so a crash leaves
// the old content or the new one. One process at a time holds the lock FILE.lock, so a second
// master is refused the file of a running one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "membership/master.h"

namespace pccl::master {

/// A place that holds a register. Calls may come from any thread, one at a time, and may block on a
/// disk.
class RegisterStore {
 public:
  virtual ~RegisterStore() = default;
  /// The content; empty if the register was never written.
  [[nodiscard]] virtual Result<Register> read() = 0;
  /// Writes `to` if the register holds `from`: true. False: it holds another value, which stays. An
  /// error: the content is not known now; read it anew.
  [[nodiscard]] virtual Result<bool> compare_and_write(const Register& from,
                                                       const Register& to) = 0;

  /// Do several masters share the register? Then one of them at a time holds a lease on it. Safety
  /// follows from compare_and_write alone; the lease keeps the masters from taking turns.
  [[nodiscard]] virtual bool shared() const { return false; }
  /// Takes or renews the lease: true. False: another master holds it, `holder()` says which.
  [[nodiscard]] virtual Result<bool> hold() { return true; }
  [[nodiscard]] virtual std::string holder() { return ""; }
  /// Gives the lease up, so that a standby need not wait for its end.
  virtual void release() {}
};

/// A register in memory, lost with the process.
[[nodiscard]] std::unique_ptr<RegisterStore> make_memory_register();

/// Opens or makes `path` (and its folder) and takes its lock. `refused`: another master holds the
/// lock, or the file is that of another run that is not over. `invalid`: the file cannot be opened,
/// read or understood; the text says what to do. `replace_damaged`: a file that cannot be
/// understood is renamed to PATH.damaged, and the register is empty.
[[nodiscard]] Result<std::unique_ptr<RegisterStore>> open_register_file(
    const std::string& path, const std::string& run, bool replace_damaged = false);

/// From a register to the content of its file, and back. A change of any byte is an error.
struct NamedRegister {
  std::string run;
  Register value;
  bool operator==(const NamedRegister&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("run", self.run, kRunNameBytesMax);
    visit("register", self.value);
  }
};
/// The register of this run in `text`, which was found at `where`. Empty text: an empty register.
[[nodiscard]] Result<Register> register_of(const std::string& text, const std::string& run,
                                           const std::string& where);
[[nodiscard]] std::string format_register(const NamedRegister& content);
[[nodiscard]] Result<NamedRegister> parse_register(const std::string& text);

}  // namespace pccl::master
