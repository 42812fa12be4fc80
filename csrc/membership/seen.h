// What the master's connections know of a peer, for the status of the run (status.h).
#pragma once

#include <cstdint>
#include <string>

namespace pccl::master {

struct Seen {
  std::string address;  // from which it is connected
  std::uint64_t silent_ms = 0;
};

}  // namespace pccl::master
