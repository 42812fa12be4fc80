#include "base/log.h"

#include <unistd.h>

#include <atomic>
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

void write_stderr(LogLevel level, std::string_view text) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::time_t seconds = static_cast<std::time_t>(ms / 1000);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  char when[16];
  static_cast<void>(std::strftime(when, sizeof when, "%H:%M:%S", &parts));
  static_cast<void>(std::fprintf(stderr, "%s.%03d pccl[%d] %s %.*s\n", when,
                                 static_cast<int>(ms % 1000), static_cast<int>(::getpid()),
                                 level_name(level), static_cast<int>(text.size()), text.data()));
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
    write_stderr(LogLevel::error, "a line of the log is lost:");
    write_stderr(LogLevel::error, e.what());
  }
}

}  // namespace pccl
