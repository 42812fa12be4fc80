// Which of the addresses in a peer's hello its mates may be told to dial. Without this whoever may
// say hello lets all members dial any number of addresses of its choice, and services that only
// their own machines should reach. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "transport/channel.h"
#include "transport/sys.h"

namespace pccl::master {

inline constexpr std::size_t kAddressesDialledMax = 4;  // of one peer, the first

/// An address that means another machine, or another link, to each machine that dials it.
[[nodiscard]] inline bool is_local_address(const std::string& host) {
  if (host == "localhost" || host.ends_with(".localhost")) return true;
  const auto address = numeric_address(host, 0);
  if (!address) return false;  // a name: the members look it up
  const std::string text = address.value().host();
  const auto begins = [&](const char* with) { return text.starts_with(with); };
  const bool link_local_v6 = begins("fe8") || begins("fe9") || begins("fea") || begins("feb");
  return address.value().is_loopback() || begins("169.254.") || link_local_v6 || begins("0.") ||
         text == "::" || text.starts_with("::%");
}

/// `remote_host`: from where the peer has come. `is_here`: that is this machine.
[[nodiscard]] inline std::vector<std::string> may_be_dialled(std::vector<std::string> addresses,
                                                             const std::string& remote_host,
                                                             bool is_here) {
  if (!is_here && !is_local_address(remote_host)) {
    std::erase_if(addresses, [](const std::string& address) {
      const auto parsed = parse_address(address);
      return !parsed || is_local_address(parsed.value().host);
    });
  }
  if (addresses.size() > kAddressesDialledMax) addresses.resize(kAddressesDialledMax);
  return addresses;
}

}  // namespace pccl::master
