// How a process is reached: exchanged through the c10d store (fixed groups) or the master (elastic
// ones).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "base/text.h"

namespace pccl {

using LinkKey = std::array<std::uint8_t, 32>;

/// The addresses of a process, and the key that a peer which connects to it must prove to hold.
struct Handle {
  PeerId peer;
  std::vector<std::string> addresses;  // "host:port", "[v6]:port", best first
  LinkKey key{};
  std::string name = {};  // for people; whatever a peer has sent: shown by `name_of`
  static constexpr std::string_view kAddedFrom = "name";
  bool operator==(const Handle&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("peer", self.peer);
    visit("addresses", self.addresses, kAddressesMax, kAddressBytesMax);
    visit("key", self.key);
    visit("name", self.name, kNameBytesMax);
  }
};

/// The name of a process in logs and errors: its own name, or its id if it has none.
[[nodiscard]] inline std::string name_of(const Handle& handle) {
  return handle.name.empty() ? to_string(handle.peer) : printable(handle.name);
}

}  // namespace pccl
