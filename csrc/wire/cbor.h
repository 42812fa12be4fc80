// CBOR (RFC 8949) over `fields`: writes, reads and prints any struct that describes itself with
// fields(self, visit). Own code and not a general parser, because what may come is known: the
// reader follows the type, so nesting is bounded by the structs and no byte of the input decides
// about recursion or about an allocation larger than the input itself.
//
// One value has one encoding: definite lengths, shortest heads, the fields of a struct as a map in
// the order in which `fields` names them. Whatever `Reader` takes, `Writer` would have written, but
// for fields that another version of the package has added at the end of a map: unknown ones are
// skipped, missing ones keep their default (`kAddedFrom`).
//   bool                          false, true
//   unsigned, ids, enums          unsigned integer
//   signed                        unsigned or negative integer
//   OpKey                         array [step, index]
//   std::string                   text string; a byte string if it is not valid UTF-8
//   Bytes, Digest, PublicKey        byte string
//   std::optional                 null or the value
//   std::vector                   array
//   Error                         map {"code", "text"}
//   a struct with `fields`        map
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/assert.h"
#include "base/error.h"
#include "base/ids.h"
#include "base/limits.h"
#include "wire/messages.h"

namespace pccl::cbor {

template <typename T>
concept Described = requires(T& value) { T::fields(value, [](auto&&...) {}); };
/// A struct to which fields were added within its protocol version (wire/messages.h).
template <typename T>
concept Grown = requires {
  { T::kAddedFrom } -> std::convertible_to<std::string_view>;
};
template <typename T>
concept NamedNumber =
    std::same_as<T, PeerId> || std::same_as<T, EpochId> || std::same_as<T, GroupId>;
template <typename T>
concept OptionalValue =
    requires { typename T::value_type; } && std::same_as<T, std::optional<typename T::value_type>>;

// An enum without its `known` does not compile: a number without a name must not be read.
constexpr bool known(VoteKind kind) { return kind <= VoteKind::resume; }
constexpr bool known(StoreOp op) { return op >= StoreOp::set && op <= StoreOp::list_keys; }
constexpr bool known(ErrorCode code) {
  return code == ErrorCode::none || error_name(code) != "none";
}

/// The number of fields that `fields` of T names.
template <Described T>
std::size_t count_fields(const T& value) {
  std::size_t count = 0;
  T::fields(value, [&](auto&&...) { ++count; });
  return count;
}

/// Fields of these names hold sentences for people, which no code reads.
constexpr bool for_people(std::string_view name) {
  return name == "text" || name == "reason" || name == "why";
}

[[nodiscard]] bool valid_utf8(std::string_view text);
/// At most `bytes_max` bytes of it, cut between characters.
[[nodiscard]] std::string_view cut_utf8(std::string_view text, std::size_t bytes_max);

enum class Major : std::uint8_t {
  number = 0,
  negative = 1,
  bytes = 2,
  text = 3,
  array = 4,
  map = 5
};
inline constexpr std::byte kFalse{0xf4};
inline constexpr std::byte kTrue{0xf5};
inline constexpr std::byte kNull{0xf6};

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& out) : out_(out) {}

  void head(Major major, std::uint64_t number);
  void text(std::string_view text);
  void bytes(std::span<const std::uint8_t> bytes);

  void put(bool value) { out_.push_back(value ? kTrue : kFalse); }
  template <std::unsigned_integral T>
  void put(T value) {
    head(Major::number, value);
  }
  template <std::signed_integral T>
  void put(T value) {
    const auto wide = static_cast<std::int64_t>(value);
    if (wide >= 0) return head(Major::number, static_cast<std::uint64_t>(wide));
    head(Major::negative, ~static_cast<std::uint64_t>(wide));
  }
  template <NamedNumber T>
  void put(const T& value) {
    head(Major::number, value.value);
  }
  template <typename T>
    requires std::is_enum_v<T>
  void put(T value) {
    head(Major::number, static_cast<std::uint64_t>(value));
  }
  void put(const OpKey& key) {
    head(Major::array, 2);
    put(key.step);
    put(key.index);
  }
  void put(const std::string& value, std::size_t bytes_max) {
    PCCL_ASSERT(value.size() <= bytes_max, value.size(), bytes_max);
    text(value);
  }
  template <std::size_t N>
  void put(const std::array<std::uint8_t, N>& value) {
    bytes(value);
  }
  void put(const Bytes& value, std::size_t bytes_max) {
    PCCL_ASSERT(value.size() <= bytes_max, value.size(), bytes_max);
    bytes(value);
  }
  void put(const Error& error, std::size_t /*code_min*/ = 0) {
    head(Major::map, 2);
    text("code");
    put(error.code);
    text("text");
    text(cut_utf8(error.text, kTextBytesMax));
  }
  template <typename T>
  void put(const std::optional<T>& value) {
    if (value) return put(*value);
    out_.push_back(kNull);
  }
  template <typename T, std::same_as<std::size_t>... Limit>
    requires(!std::same_as<T, std::uint8_t>)
  void put(const std::vector<T>& list, std::size_t count_max, Limit... entry_max) {
    PCCL_ASSERT(list.size() <= count_max, list.size(), count_max);
    head(Major::array, list.size());
    for (const auto& entry : list) put(entry, entry_max...);
  }
  template <Described T>
  void put(const T& value) {
    head(Major::map, count_fields(value));
    put_fields(value);
  }
  template <Described T>
  void put_fields(const T& value) {
    T::fields(value, [&](std::string_view name, const auto& field, auto... limits) {
      text(name);
      if constexpr (std::same_as<std::decay_t<decltype(field)>, std::string>) {
        // Sentences for people are cut. Other fields are checked before they get into a message.
        if (for_people(name)) return text(cut_utf8(field, static_cast<std::size_t>(limits)...));
      }
      put(field, static_cast<std::size_t>(limits)...);
    });
  }

 private:
  std::vector<std::byte>& out_;
};

/// Reads the fields in the order of the type. After the first value that does not fit all further
/// reads fail, and `error` says which value it was and where.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}

  [[nodiscard]] bool ok() const { return error_.empty(); }
  [[nodiscard]] bool at_end() const { return at_ == in_.size(); }
  [[nodiscard]] const std::string& error() const { return error_; }
  void fail(std::string_view what);

  [[nodiscard]] std::uint64_t head(Major major, std::string_view expected);
  /// A text string, or the byte string that stands for a text that is not UTF-8. Borrows from the
  /// input.
  [[nodiscard]] std::string_view text(std::size_t bytes_max);
  [[nodiscard]] std::span<const std::uint8_t> bytes(std::size_t bytes_max);
  void name(std::string_view expected);

  void get(bool& value);
  template <std::unsigned_integral T>
  void get(T& value) {
    const std::uint64_t number = head(Major::number, "an unsigned integer");
    if (number > std::numeric_limits<T>::max()) return fail("a number out of range");
    value = static_cast<T>(number);
  }
  void get(std::int64_t& value);
  template <NamedNumber T>
  void get(T& value) {
    value.value = head(Major::number, "an unsigned integer");
  }
  template <typename T>
    requires std::is_enum_v<T>
  void get(T& value) {
    const std::uint64_t number = head(Major::number, "an unsigned integer");
    if (number > std::numeric_limits<std::underlying_type_t<T>>::max() ||
        !known(static_cast<T>(number))) {
      return fail("a number that names nothing");
    }
    value = static_cast<T>(number);
  }
  void get(OpKey& key) {
    if (head(Major::array, "[step, index]") != 2) return fail("not [step, index]");
    get(key.step);
    get(key.index);
  }
  void get(std::string& value, std::size_t bytes_max) { value = text(bytes_max); }
  template <std::size_t N>
  void get(std::array<std::uint8_t, N>& value) {
    const auto read = bytes(N);
    if (read.size() != N) return fail("a byte string of another length");
    std::copy(read.begin(), read.end(), value.begin());
  }
  void get(Bytes& value, std::size_t bytes_max) {
    const auto read = bytes(bytes_max);
    value.assign(read.begin(), read.end());
  }
  void get(Error& error, std::size_t code_min = 0) {
    if (head(Major::map, "an error") != 2) return fail("not an error");
    name("code");
    get(error.code);
    if (static_cast<std::size_t>(error.code) < code_min) return fail("a failure without a code");
    name("text");
    get(error.text, kTextBytesMax);
  }
  template <typename T>
  void get(std::optional<T>& value) {
    value.reset();
    if (at_ < in_.size() && in_[at_] == kNull) {
      ++at_;
    } else {
      get(value.emplace());
    }
  }
  template <typename T, std::same_as<std::size_t>... Limit>
    requires(!std::same_as<T, std::uint8_t>)
  void get(std::vector<T>& list, std::size_t count_max, Limit... entry_max) {
    const std::uint64_t count = head(Major::array, "an array");
    if (count > count_max) return fail("an array over its limit");
    // Every entry takes a byte at least: a short message cannot ask for a long list.
    if (count > in_.size() - at_) return fail("it ends too early");
    list.clear();
    list.reserve(std::min<std::size_t>(static_cast<std::size_t>(count), 256));
    for (std::uint64_t i = 0; i < count && ok(); ++i) get(list.emplace_back(), entry_max...);
  }
  template <Described T>
  void get(T& value) {
    get_fields(value, head(Major::map, "a map"));
  }
  /// `count` fields of a map whose head has been read.
  template <Described T>
  void get_fields(T& value, std::uint64_t count) {
    bool may_end = false;
    T::fields(value, [&](std::string_view field_name, auto& field, auto... limits) {
      if (!ok()) return;
      if constexpr (Grown<T>) may_end = may_end || field_name == T::kAddedFrom;
      if (count == 0 && may_end) return;
      if (count == 0) return fail("no field \"" + std::string(field_name) + "\"");
      --count;
      name(field_name);
      if (ok()) get(field, static_cast<std::size_t>(limits)...);
    });
    for (; count > 0 && ok(); --count) {
      const std::string_view unknown = text(kTextBytesMax);
      T::fields(value, [&](std::string_view field_name, auto&&...) {
        if (ok() && unknown == field_name) fail("a field that is repeated or out of order");
      });
      skip(kUnknownDepthMax);
    }
  }

 private:
  /// A value of any of the types above.
  void skip(std::size_t depth_left);

  std::span<const std::byte> in_;
  std::size_t at_ = 0;
  std::string error_;
};

/// One struct as one CBOR map, for structs that are no message (a handle, the master's register).
template <Described T>
[[nodiscard]] std::vector<std::byte> encode_struct(const T& value) {
  std::vector<std::byte> out;
  Writer(out).put(value);
  return out;
}
template <Described T>
[[nodiscard]] Result<T> decode_struct(std::span<const std::byte> in, std::string_view what) {
  Reader reader(in);
  T value;
  reader.get(value);
  if (reader.ok() && !reader.at_end()) reader.fail("bytes after its end");
  if (!reader.ok()) return {ErrorCode::malformed, std::string(what) + ": " + reader.error()};
  return value;
}

}  // namespace pccl::cbor
