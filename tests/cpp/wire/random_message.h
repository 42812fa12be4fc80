// Random contents for any message, through its `fields`: what round trips and fuzzers are fed with.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/random.h"
#include "wire/cbor.h"
#include "wire/messages.h"

namespace pccl::test {

class Filler {
 public:
  /// Lists have at most `entries_max` entries, texts and byte strings `bytes_max` bytes.
  Filler(Random& random, std::size_t entries_max, std::size_t bytes_max)
      : random_(random), entries_max_(entries_max), bytes_max_(bytes_max) {}

  void put(bool& value) { value = random_.below(2) == 1; }
  template <std::integral T>
  void put(T& value) {
    value = static_cast<T>(number());
  }
  template <cbor::NamedNumber T>
  void put(T& value) {
    value.value = number();
  }
  template <typename T>
    requires std::is_enum_v<T>
  void put(T& value) {
    do {
      value = static_cast<T>(random_.below(16));
    } while (!cbor::known(value));
  }
  void put(OpKey& key) {
    put(key.step);
    put(key.index);
  }
  void put(std::string& value, std::size_t bytes_max) {
    value.resize(random_.below(std::min(bytes_max, bytes_max_) + 1));
    const bool readable = random_.below(4) != 0;
    for (char& c : value) {
      c = static_cast<char>(readable ? 32 + random_.below(90) : random_.below(256));
    }
  }
  template <std::size_t N>
  void put(std::array<std::uint8_t, N>& value) {
    for (auto& byte : value) byte = static_cast<std::uint8_t>(random_.next());
  }
  void put(Bytes& value, std::size_t bytes_max) {
    value.resize(random_.below(std::min(bytes_max, bytes_max_) + 1));
    for (auto& byte : value) byte = static_cast<std::uint8_t>(random_.next());
  }
  void put(Error& error, std::size_t code_min = 0) {
    do {
      put(error.code);
    } while (static_cast<std::size_t>(error.code) < code_min);
    put(error.text, kTextBytesMax);
  }
  template <typename T>
  void put(std::optional<T>& value) {
    value.reset();
    if (random_.below(2) == 1) put(value.emplace());
  }
  template <typename T, typename... Limit>
    requires(!std::same_as<T, std::uint8_t>)
  void put(std::vector<T>& list, std::size_t count_max, Limit... entry_max) {
    list.resize(random_.below(std::min(count_max, entries_max_) + 1));
    for (auto& entry : list) put(entry, entry_max...);
  }
  template <cbor::Described T>
  void put(T& value) {
    T::fields(value, [&](std::string_view, auto& field, auto... limits) {
      put(field, static_cast<std::size_t>(limits)...);
    });
  }

 private:
  /// Near the borders of every length of a CBOR head.
  std::uint64_t number() { return random_.next() >> random_.below(64); }

  Random& random_;
  std::size_t entries_max_;
  std::size_t bytes_max_;
};

/// A message of the kind with this index, wrapped.
template <typename Variant, std::size_t Index = 0>
Variant random_message(Random& random, std::size_t index, std::size_t entries_max = 5,
                       std::size_t bytes_max = 40) {
  if constexpr (Index + 1 < std::variant_size_v<Variant>) {
    if (index > Index) {
      return random_message<Variant, Index + 1>(random, index, entries_max, bytes_max);
    }
  }
  std::variant_alternative_t<Index, Variant> message;
  Filler(random, entries_max, bytes_max).put(message);
  return message;
}

}  // namespace pccl::test
