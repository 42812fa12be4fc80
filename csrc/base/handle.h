// How a process is reached: exchanged through the c10d store (fixed groups) or the master (elastic
// ones).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"

namespace pccl {

using LinkKey = std::array<std::uint8_t, 32>;

/// The addresses of a process, and the key that a peer which connects to it must prove to hold.
struct Handle {
  PeerId peer;
  std::vector<std::string> addresses;  // "host:port", "[v6]:port", best first
  LinkKey key{};
  bool operator==(const Handle&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("peer", self.peer);
    visit("addresses", self.addresses, kAddressesMax, kAddressBytesMax);
    visit("key", self.key);
  }
};

}  // namespace pccl
