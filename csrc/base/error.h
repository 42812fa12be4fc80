// The error table: every code, its number on the wire and its text. The enum, the names and the
// Python classes (pccl_backend/_errors.py) hang on it. A code exists only if a caller can react to
// it in its own way; numbers are never reused. PROTOCOL.md has a row for each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace pccl {

#define PCCL_ERRORS(X)                                                                  \
  X(peer_lost, 1, "a member was lost")                                                  \
  X(timed_out, 2, "the operation did not finish in time")                               \
  X(malformed, 3, "a received message does not follow PROTOCOL.md")                     \
  X(evicted, 4, "the master went on without this peer; join again as a newcomer")       \
  X(mismatch, 5, "the ranks of a group called different operations")                    \
  X(refused, 6, "the other side refuses: wrong run, version, proof or number of ranks") \
  X(unreachable, 7, "nobody answers at the address")                                    \
  X(closed, 8, "the group or the engine has been closed")                               \
  X(invalid, 9, "an argument is wrong; nothing was sent")                               \
  X(not_admitted, 10, "a newcomer has to call refresh before it issues operations")     \
  X(broken, 11, "an invariant of pccl does not hold: a bug, the engine has stopped")    \
  X(no_memory, 12, "a member had no memory for the operation")                          \
  X(run_ended, 13, "the run is finished: its members have said so")

enum class ErrorCode : std::uint8_t {
  none = 0,
#define PCCL_ENUM(name, number, text) name = number,
  PCCL_ERRORS(PCCL_ENUM)
#undef PCCL_ENUM
};

constexpr std::string_view error_name(ErrorCode code) {
  switch (code) {
#define PCCL_NAME(name, number, text) \
  case ErrorCode::name:               \
    return #name;
    PCCL_ERRORS(PCCL_NAME)
#undef PCCL_NAME
    case ErrorCode::none:
      break;
  }
  return "none";
}

/// What went wrong, to whom, and what to do, in words. `code == none` means success.
struct Error {
  ErrorCode code = ErrorCode::none;
  std::string text;

  bool operator==(const Error&) const = default;
  [[nodiscard]] bool failed() const { return code != ErrorCode::none; }
};

/// Either a value or an Error; the only way in which an expected failure leaves a function.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}      // NOLINT: implicit on purpose
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit on purpose
  Result(ErrorCode code, std::string text) : error_{code, std::move(text)} {}

  [[nodiscard]] bool ok() const { return !error_.failed(); }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] const Error& error() const { return error_; }
  [[nodiscard]] const T& value() const& { return value_; }
  [[nodiscard]] T& value() & { return value_; }
  [[nodiscard]] T&& value() && { return std::move(value_); }

 private:
  T value_{};
  Error error_;
};

}  // namespace pccl
