// How a process is reached: exchanged through the c10d store (fixed groups) or the master (elastic
// ones).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "base/text.h"

namespace pccl {

/// The addresses of a process, and its public key: a link is made with the process that proves to
/// hold the private half, whatever answers at an address.
struct Handle {
  PeerId peer;
  std::vector<std::string> addresses;  // "host:port", "[v6]:port", best first
  PublicKey key{};
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
