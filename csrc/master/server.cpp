#include "master/server.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "base/limits.h"
#include "base/text.h"
#include "transport/clock.h"
#include "transport/network.h"

namespace pccl::master {
namespace {

/// An address that only this machine reaches.
bool is_loopback(const std::string& host) {
  const bool numeric = host.find_first_not_of("0123456789.") == std::string::npos;
  return host == "localhost" || host == "::1" || (numeric && host.starts_with("127."));
}

Error unusable(std::string text) { return Error{ErrorCode::invalid, std::move(text)}; }

/// As is_run_name of pccl_backend/_config.py, which refuses other names before.
bool is_run_name(std::string_view text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !text.empty() && text.size() <= kRunNameBytesMax &&
         std::all_of(text.begin(), text.end(), fits);
}

Error check(const MasterOptions& options) {
  if (!options.insecure && !is_loopback(options.host)) {
    return unusable(
        "listening on " + options.host +
        " lets every machine that reaches it join the run, and there are no tokens yet: "
        "say --insecure if you trust that network, or listen on 127.0.0.1");
  }
  return Error{};
}

Error check(const RunOptions& options) {
  if (!is_run_name(options.run)) {
    return unusable("\"" + printable(options.run) + "\" is not a run name: 1 to " +
                    std::to_string(kRunNameBytesMax) +
                    " letters of ASCII, digits, '-', '_' and '.'");
  }
  if (options.min_peers == 0) return unusable("min_peers is 0; a run is founded by at least 1");
  if (options.hold_below == 0) return unusable("hold_below is 0; it is at least 1");
  if (options.max_peers < options.min_peers || options.max_peers > kMembersMax) {
    return unusable("max_peers is " + std::to_string(options.max_peers) +
                    "; it is at least min_peers, " + std::to_string(options.min_peers) +
                    ", and at most " + std::to_string(kMembersMax));
  }
  if (options.adopt && options.refound) {
    return unusable("adopt and refound: members that the register does not know go on, or do not");
  }
  if (options.heartbeat_ms == 0) return unusable("heartbeat_ms is 0; it is at least 1");
  if (options.silence_ms < 2 * options.heartbeat_ms) {
    return unusable("silence_ms is " + std::to_string(options.silence_ms) +
                    ", less than two heartbeats of " + std::to_string(options.heartbeat_ms) +
                    " ms: every peer would be evicted");
  }
  return Error{};
}

Error check(const std::vector<ServedRun>& runs) {
  if (runs.empty() || runs.size() > kRunsMax) {
    return unusable("a master serves 1 to " + std::to_string(kRunsMax) + " runs, not " +
                    std::to_string(runs.size()));
  }
  std::set<std::string> names;
  for (const ServedRun& run : runs) {
    if (!names.insert(run.options.run).second) {
      return unusable("two runs have the name \"" + run.options.run + "\"");
    }
    if (Error error = check(run.options); error.failed()) {
      if (runs.size() > 1) error.text = "run \"" + run.options.run + "\": " + error.text;
      return error;
    }
  }
  return Error{};
}

}  // namespace

MasterServer::MasterServer(Network& network, MasterOptions options, std::vector<ServedRun> runs)
    : network_(network),
      options_(std::move(options)),
      to_serve_(std::move(runs)),
      reception_(
          network,
          [this](const std::string& name) -> Result<Connections*> {
            const auto found = run(name);
            if (!found) return found.error();
            return &found.value()->connections();
          },
          [this](const StatusRequest& request) { return status(request); }) {}

Result<std::uint16_t> MasterServer::start() {
  if (Error error = check(options_); error.failed()) return error;
  if (Error error = check(to_serve_); error.failed()) return error;
  auto port = reception_.listen(options_.host, options_.port);
  if (!port) return port.error();
  const bool several = to_serve_.size() > 1;
  for (ServedRun& run : to_serve_) {
    const std::string name = run.options.run;
    const std::string prefix = several ? "run \"" + name + "\": " : "";
    auto& server = runs_[name];
    server = std::make_unique<RunServer>(network_, options_, std::move(run), prefix);
    if (Error error = server->start(); error.failed()) {
      error.text = prefix + error.text;
      return error;
    }
  }
  to_serve_.clear();
  return port;
}

void MasterServer::stop(std::function<void()> done) {
  reception_.stop_listening();
  const auto all = std::make_shared<std::size_t>(runs_.size());
  if (*all == 0) return network_.clock().post(std::move(done));
  for (const auto& [name, server] : runs_) {
    server->stop([all, done] {
      if (--*all == 0) done();
    });
  }
}

Result<RunServer*> MasterServer::run(const std::string& name) {
  if (name.empty() && runs_.size() == 1) return runs_.begin()->second.get();
  if (const auto at = runs_.find(name); at != runs_.end()) return at->second.get();
  std::string served;
  for (const auto& [each, server] : runs_) served += (served.empty() ? "\"" : ", \"") + each + "\"";
  const std::string text =
      "this master serves " + (runs_.size() == 1 ? "run " + served : "the runs " + served) +
      (name.empty() ? ": name one of them, as in pccl://HOST:PORT/" + runs_.begin()->first
                    : ", not \"" + name + "\"");
  return Error{ErrorCode::refused, text};
}

MasterToPeer MasterServer::status(const StatusRequest& request) {
  const auto found = run(request.run);
  if (!found) return Refuse{found.error()};
  return found.value()->status();
}

}  // namespace pccl::master
