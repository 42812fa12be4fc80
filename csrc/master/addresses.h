// Where a process has come from, and which of the addresses in a peer's hello its mates may be told
// to dial. Without this whoever may say hello lets all members dial any number of addresses of its
// choice, and services that only their own machines should reach. A name is looked up by the
// members, which leave out what is local to them (connector.h). Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "transport/address.h"
#include "transport/channel.h"

namespace pccl::master {

inline constexpr std::size_t kAddressesDialledMax = 4;  // of one peer, the first

/// `remote_host`: from where the peer has come. `is_here`: that is this machine.
[[nodiscard]] inline std::vector<std::string> may_be_dialled(std::vector<std::string> addresses,
                                                             const std::string& remote_host,
                                                             bool is_here) {
  if (!is_here && !is_local_host(remote_host)) {
    std::erase_if(addresses, [](const std::string& address) {
      const auto parsed = parse_address(address);
      return !parsed || is_local_host(parsed.value().host);
    });
  }
  if (addresses.size() > kAddressesDialledMax) addresses.resize(kAddressesDialledMax);
  return addresses;
}

/// By what a process is known that may choose its id anew each time: its token and its network,
/// neither of which it can choose. Empty: not known.
[[nodiscard]] inline std::string origin_of(const std::string& token, const std::string& remote) {
  const auto address = parse_address(remote);
  return address ? token + "@" + network_of(address.value().host) : "";
}

}  // namespace pccl::master
