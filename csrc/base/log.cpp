#include "base/log.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>
#include <mutex>
#include <string>

#include "base/text.h"

namespace pccl {
namespace {

std::atomic<int> level_now{static_cast<int>(LogLevel::info)};

std::mutex& sink_mutex() {
  static auto* mutex = new std::mutex;  // never destroyed: threads may log while the process exits
  return *mutex;
}
LogSink& sink() {
  static auto* the_sink = new LogSink;
  return *the_sink;
}

const char* level_name(LogLevel level) {
  if (level >= LogLevel::error) return "ERROR";
  if (level >= LogLevel::warning) return "WARNING";
  if (level >= LogLevel::info) return "INFO";
  return "DEBUG";
}

// A pipe that poll calls writable takes so many bytes without a wait (PIPE_BUF).
constexpr std::size_t kWrittenAtOnceMax = 4096;
// A stopped terminal and a pipe that nobody reads take nothing: then lines are lost, and not the
// heartbeats of the thread that logs. A slow reader is waited for, in a tenth of the time.
constexpr std::chrono::nanoseconds kPatience = std::chrono::milliseconds(200);

/// stderr; of a terminal a description of its own that does not block, since a terminal blocks a
/// writer although poll calls it writable. The program's description stays as it is.
int stderr_descriptor() {
  static int own = -1;
  struct stat it{};
  struct stat mine{};
  if (::fstat(STDERR_FILENO, &it) != 0 || !S_ISCHR(it.st_mode)) return STDERR_FILENO;
  const auto is_own = [&] {  // and not what the program has opened under this number since
    return ::fstat(own, &mine) == 0 && S_ISCHR(mine.st_mode) && mine.st_rdev == it.st_rdev;
  };
  if (own < 0 || !is_own()) {
    own = ::open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  }
  return own < 0 ? STDERR_FILENO : own;
}

/// Is there room now, or before patience ends?
bool has_room(int descriptor) {
  static std::chrono::nanoseconds patience = kPatience;
  static std::chrono::steady_clock::time_point then{};
  pollfd one{descriptor, POLLOUT, 0};
  if (::poll(&one, 1, 0) > 0) return true;
  const auto began = std::chrono::steady_clock::now();
  patience = std::min(kPatience, patience + (began - then) / 10);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(patience).count();
  const int ready = ms > 0 ? ::poll(&one, 1, static_cast<int>(ms)) : 0;
  then = std::chrono::steady_clock::now();
  patience -= then - began;
  return ready > 0 || (ready < 0 && errno == EINTR);
}

/// False: stderr takes no more bytes for now; the rest is lost. Under the sink's lock.
bool write_all(std::string_view bytes) {
  const int descriptor = stderr_descriptor();
  while (!bytes.empty()) {
    if (!has_room(descriptor)) return false;
    const ssize_t written =
        ::write(descriptor, bytes.data(), std::min(bytes.size(), kWrittenAtOnceMax));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno == EBADF || errno == EPIPE;  // nobody will ever read it
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

void write_stderr(LogLevel level, std::string_view text) {
  static std::uint64_t lost = 0;  // lines; under the sink's lock
  if (lost > 0) {
    char line[80];
    const int length =
        std::snprintf(line, sizeof line, "\n[%llu lines are lost: stderr took none]\n",
                      static_cast<unsigned long long>(lost));
    if (!write_all({line, static_cast<std::size_t>(length)})) {
      ++lost;
      return;
    }
    lost = 0;
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::time_t seconds = static_cast<std::time_t>(ms / 1000);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  char when[16];
  static_cast<void>(std::strftime(when, sizeof when, "%H:%M:%S", &parts));
  char head[64];
  static_cast<void>(std::snprintf(head, sizeof head, "%s.%03d pccl[%d] %s ", when,
                                  static_cast<int>(ms % 1000), static_cast<int>(::getpid()),
                                  level_name(level)));
  std::string line(head);
  line.append(text).push_back('\n');
  if (!write_all(line)) ++lost;
}

}  // namespace

std::uint64_t unix_s() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

void set_log_level(LogLevel level) { level_now = static_cast<int>(level); }
LogLevel log_level() { return static_cast<LogLevel>(level_now.load()); }

LogLevel parse_log_level(std::string_view text, LogLevel fallback) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  if (lower == "debug") return LogLevel::debug;
  if (lower == "info") return LogLevel::info;
  if (lower == "warning" || lower == "warn") return LogLevel::warning;
  if (lower == "error") return LogLevel::error;
  if (lower == "off" || lower == "none") return LogLevel::off;
  int number = 0;
  const auto [end, error] = std::from_chars(lower.data(), lower.data() + lower.size(), number);
  if (error == std::errc{} && end == lower.data() + lower.size())
    return static_cast<LogLevel>(number);
  return fallback;
}

void set_log_sink(LogSink new_sink) {
  const std::lock_guard lock(sink_mutex());
  sink() = std::move(new_sink);
}

void log(LogLevel level, std::string_view text) noexcept {
  if (static_cast<int>(level) < level_now.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(sink_mutex());
  try {
    const std::string line = printable(text);  // words of others are in it
    if (sink()) {
      sink()(level, line);
    } else {
      write_stderr(level, line);
    }
  } catch (const std::exception& e) {
    for (const std::string_view words : {std::string_view("pccl: a line of the log is lost: "),
                                         std::string_view(e.what()), std::string_view("\n")}) {
      static_cast<void>(write_all(words));
    }
  }
}

}  // namespace pccl
