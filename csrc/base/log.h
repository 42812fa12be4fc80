// One log line: level, subsystem, text. Lines go to a sink; the default one writes to stderr, and
// where stderr takes nothing for a moment it loses lines, counts them, and says so later. The
// only part of base with state: the sink and the level of the process (PCCL_LOG_LEVEL), because a
// log line may be written before anything has been wired. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace pccl {

enum class LogLevel : int { debug = 10, info = 20, warning = 30, error = 40, off = 100 };

using LogSink = std::function<void(LogLevel, std::string_view)>;

void set_log_level(LogLevel level);
[[nodiscard]] LogLevel log_level();
/// "debug", "info", "warning", "error", "off" or a number as Python's logging has them; else
/// `fallback`.
[[nodiscard]] LogLevel parse_log_level(std::string_view text, LogLevel fallback);
/// Replaces the sink (an empty one restores stderr). The sink is called under a lock: it must not
/// log.
void set_log_sink(LogSink sink);
/// Where there is no memory for the line, or its sink throws, stderr says so.
void log(LogLevel level, std::string_view text) noexcept;
/// Seconds since 1970: the time of day, for people. Nothing is waited for by it.
[[nodiscard]] std::uint64_t unix_s();

inline void log_debug(std::string_view t) { log(LogLevel::debug, t); }
inline void log_info(std::string_view t) { log(LogLevel::info, t); }
inline void log_warning(std::string_view t) { log(LogLevel::warning, t); }
inline void log_error(std::string_view t) { log(LogLevel::error, t); }

}  // namespace pccl
