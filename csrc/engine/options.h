// The options of the engine of a process. pccl_backend/_config.py fills them (argument, then
// PCCL_*, then these defaults) and passes them in; no C++ reads the environment for options.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"
#include "trust/token.h"
#include "wire/parts.h"

namespace pccl {

struct EngineOptions {
  std::string package;                       // version of the package, for masters and their logs
  std::string name;                          // of this process in logs and errors; empty: its id
  std::string host;                          // name of this machine, for people
  std::vector<std::string> advertise;        // hosts that others are told; empty: Engine::handle
  std::uint32_t threads = 1;                 // that move, encrypt and add up data
  std::uint64_t connect_timeout_ms = 10000;  // to reach a peer
  std::uint64_t master_timeout_ms = 60000;   // to reach a master, which may be started later
  // Fixed groups: without a sign of life while others wait.
  std::uint64_t silence_timeout_ms = 30000;
  // Elastic groups: all have issued an operation, and no data moves.
  std::uint64_t stall_timeout_ms = 15000;
  std::uint64_t preimage_bytes_max = 1ULL << 30;  // copies of outputs, to restore them after a loss
  std::uint64_t hold_timeout_ms = 30ULL * 60 * 1000;  // without a master
  // At the end of the process: a link over which nothing moves for so long sends no more of what
  // others need (GoodbyeTime).
  std::uint64_t goodbye_timeout_ms = 5000;
  LinkOptions links;
  std::shared_ptr<const Tokens> tokens = nullptr;  // with which it enters a run; null: none
};

struct JoinOptions {
  std::vector<std::string> masters;              // "host:port", in list order
  std::string run;                               // empty: the master's run, whatever its name
  Place place;                                   // replica empty: a replica of one rank
  bool raises = false;                           // on_loss="raise": no operation is replayed
  std::uint64_t timeout_ms = 30ULL * 60 * 1000;  // for the founding
};

}  // namespace pccl
