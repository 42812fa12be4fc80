// The running master: the runs that it serves, and the port at which their peers come in. The runs
// know nothing of each other: each has its state, register, store and limits (run_server.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "master/options.h"
#include "master/reception.h"
#include "master/run_server.h"

namespace pccl {

/// Serves until SIGINT or SIGTERM, on the calling thread. Prints how to join to stdout. Returns the
/// exit status: 0 after a signal, 1 if it could not start (said on stderr), 3 after a broken
/// invariant.
[[nodiscard]] int run_master(const MasterOptions& options, std::vector<ServedRun> runs);

/// Listens where such a master would, and stops: for the time before anything is written for it.
[[nodiscard]] Error check_listen(const std::string& host, std::uint16_t port);

}  // namespace pccl

namespace pccl::master {

inline constexpr std::size_t kRunsMax = kStatusRunsMax;  // of one master

/// All calls on the loop's thread. Destroy it before the loop.
class MasterServer {
 public:
  MasterServer(Network& network, MasterOptions options, std::vector<ServedRun> runs);

  /// Checks the options, listens, opens the registers and takes over. Returns the port. An error
  /// says what to change; the server cannot be used then.
  [[nodiscard]] Result<std::uint16_t> start();
  /// Stops the masters of all runs (RunServer::stop), then calls `done`.
  void stop(bool ends_wait, std::function<void()> done);

  /// Reads the token file again. Who has come by a token that is not in it any more is evicted; if
  /// it is wrong, the log says so and nothing changes.
  void reload_tokens();

  /// A run that it serves. Empty: the only one. An error names those that it serves.
  [[nodiscard]] Result<RunServer*> run(const std::string& name = "");

 private:
  [[nodiscard]] Result<RunServer*> run_for(const std::string& name, const Caller& caller);
  [[nodiscard]] MasterToPeer names(const Caller& caller);
  [[nodiscard]] MasterToPeer status(const StatusRequest& request, const Caller& caller);
  void take_tokens(Tokens tokens);
  [[nodiscard]] TokenMark mark_of(const Token& token) const;
  /// The tokens that open the run.
  [[nodiscard]] std::vector<TokenMark> valid_for(const std::string& run) const;

  Network& network_;
  const MasterOptions options_;
  std::vector<ServedRun> to_serve_;     // until it starts
  std::shared_ptr<Entrance> entrance_;  // null: anybody may enter
  bool reading_tokens_ = false;
  bool read_tokens_again_ = false;  // the file may have changed while it was read
  std::map<std::string, std::unique_ptr<RunServer>> runs_;
  Reception reception_;  // and after the runs: it is destroyed first
};

}  // namespace pccl::master
