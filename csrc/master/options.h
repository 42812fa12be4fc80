// The options of a master and of the runs that it serves. pccl_backend/_cli.py fills them and
// passes them in; no code here reads the environment. Plain fields only: core_module.cpp fills them
// by name from Python dictionaries.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace pccl {

namespace master {
class RegisterStore;
}

/// Of the process, whichever runs it serves.
struct MasterOptions {
  std::string host = "127.0.0.1";  // address or name on which it listens
  std::uint16_t port = 48148;      // 0: any free one
  bool insecure = false;           // may listen without tokens on an address that others reach
  std::string token_file;          // who may enter (trust/token_file.h); empty: anybody
  std::string port_file;           // gets the port that was opened; empty: none is written
  std::string log_level = "info";  // debug, info, warning, error, off
  std::string package;             // version of the package, for peers and logs
  std::size_t descriptors = 0;     // that this process may open; 0: as the system says

  /// visit(name, field) for each option.
  static void fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("port", self.port);
    visit("insecure", self.insecure);
    visit("token_file", self.token_file);
    visit("port_file", self.port_file);
    visit("log_level", self.log_level);
    visit("package", self.package);
  }
};

/// Of one run.
struct RunOptions {
  std::string run = "default";        // its name
  std::uint32_t min_peers = 2;        // replicas that found the run
  std::uint32_t hold_below = 1;       // with fewer replicas the run holds at its next boundary
  std::uint32_t max_peers = 4096;     // most members of an epoch; further peers wait at the door
  bool measure_links = true;          // of members, and order the ring by what they carry
  bool adopt = false;                 // go on with an epoch that the register does not know
  bool refound = false;               // give up such an epoch, and one whose members stay away
  std::uint64_t again = 0;            // open the run anew if it was finished then (Unix time, s)
  std::string state_file;             // the register; empty: in memory, lost with the process
  std::uint64_t heartbeat_ms = 1000;  // between two heartbeats, in both directions
  std::uint64_t silence_ms = 10000;   // a peer that is silent for so long is evicted
  std::uint64_t absence_ms = 500;     // a peer whose connection closed may come back for so long
  std::uint64_t patience_ms = 15000;  // after a take-over: members may come back for so long
  std::uint64_t founding_delay_ms = 3000;  // with an empty register no run is founded before
  std::uint64_t refound_after_ms = 60000;  // members may come back for so long when all are lost
  std::uint64_t register_deadline_ms = 10000;  // for one write of the register
  std::uint64_t lease_renew_ms = 1250;         // of a register that several masters share
  // A master stays in charge for so long without a renewed lease.
  std::uint64_t lease_lapse_ms = 600000;
  std::uint64_t say_waiting_ms = 5000;  // between two log lines about peers that the run waits for

  /// visit(name, field) for each option.
  static void fields(auto& self, auto&& visit) {
    visit("run", self.run);
    visit("min_peers", self.min_peers);
    visit("hold_below", self.hold_below);
    visit("max_peers", self.max_peers);
    visit("measure_links", self.measure_links);
    visit("adopt", self.adopt);
    visit("refound", self.refound);
    visit("again", self.again);
    visit("state_file", self.state_file);
    visit("heartbeat_ms", self.heartbeat_ms);
    visit("silence_ms", self.silence_ms);
    visit("absence_ms", self.absence_ms);
    visit("patience_ms", self.patience_ms);
    visit("founding_delay_ms", self.founding_delay_ms);
    visit("refound_after_ms", self.refound_after_ms);
    visit("register_deadline_ms", self.register_deadline_ms);
    visit("lease_renew_ms", self.lease_renew_ms);
    visit("lease_lapse_ms", self.lease_lapse_ms);
    visit("say_waiting_ms", self.say_waiting_ms);
  }
};

/// A run that a master serves.
struct ServedRun {
  RunOptions options;
  std::shared_ptr<master::RegisterStore> held = nullptr;  // in place of options.state_file
};

}  // namespace pccl
