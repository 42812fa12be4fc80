// See process.h. A process id means something within one boot of one kernel and one PID namespace,
// the time of a start within one time namespace, so all three are in the name of the machine: a
// container that shares not all of them with the master is another machine here.
#include "transport/process.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>

#include "base/fnv.h"

namespace pccl {
namespace {

/// Never 0. No secret is kept by it.
std::uint64_t hash(std::string_view text) {
  Fnv1a fnv;
  fnv.add(std::as_bytes(std::span(text)));
  return fnv.value() == 0 ? 1 : fnv.value();
}

std::string content(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// What /proc/ID/stat says: "ID (NAME) STATE ...", the start as field 22; NAME may be anything.
struct Stat {
  std::uint64_t id = 0;
  char state = ' ';
  std::uint64_t started = 0;
};

std::optional<Stat> stat_of(const std::string& folder) {
  const std::string line = content(folder + "/stat");
  const std::size_t after = line.rfind(')');
  if (after == std::string::npos) return std::nullopt;
  Stat stat;
  std::istringstream before(line);
  std::istringstream fields(line.substr(after + 1));
  before >> stat.id;
  fields >> stat.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> stat.started;
  if (!before || !fields) return std::nullopt;
  return stat;
}

/// "" if there is no such namespace: older kernels have none of time.
std::string namespace_of(const char* kind) {
  struct stat space{};
  if (::stat((std::string("/proc/self/ns/") + kind).c_str(), &space) != 0) return "";
  return std::to_string(space.st_ino);
}

std::uint64_t this_machine() {
  const std::string boot = content("/proc/sys/kernel/random/boot_id");
  const std::string processes = namespace_of("pid");
  if (boot.empty() || processes.empty()) return 0;
  return hash(boot + " " + processes + " " + namespace_of("time"));
}

/// All of its threads have ended, and its parent has not asked how.
bool is_zombie(const std::string& folder, const Stat& stat) {
  if (stat.state != 'Z' && stat.state != 'X') return false;
  // A first thread that has ended is a zombie too, while others of its process run.
  std::error_code error;  // what cannot be looked at lives
  int threads = 0;
  std::filesystem::directory_iterator thread(folder + "/task", error);
  for (; !error && thread != std::filesystem::directory_iterator(); thread.increment(error)) {
    ++threads;
  }
  return !error && threads <= 1;
}

}  // namespace

ProcessName this_process() {
  ProcessName self{0, static_cast<std::uint64_t>(::getpid()), 0};
  const std::optional<Stat> stat = stat_of("/proc/self");
  if (!stat || stat->id != self.id) return self;  // /proc is that of another namespace
  self.machine = this_machine();
  self.started = stat->started;
  return self;
}

bool has_ended(const ProcessName& process) {
  const auto id = static_cast<pid_t>(process.id);
  static const std::uint64_t machine = this_process().machine;
  if (process.machine == 0 || process.machine != machine) return false;
  if (id <= 0 || static_cast<std::uint64_t>(id) != process.id) return false;
  if (::kill(id, 0) != 0) return errno == ESRCH;
  const std::string folder = "/proc/" + std::to_string(process.id);
  const std::optional<Stat> stat = stat_of(folder);
  return stat && (stat->started != process.started || is_zombie(folder, *stat));
}

}  // namespace pccl
