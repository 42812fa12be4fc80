#include "master/server.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "transport/clock.h"
#include "transport/network.h"
#include "trust/token_file.h"

namespace pccl::master {
namespace {

Error unusable(std::string text) { return Error{ErrorCode::invalid, std::move(text)}; }

Error check(const MasterOptions& options) {
  const bool open = options.token_file.empty();
  if (open && !options.insecure && !is_loopback_host(options.host)) {
    return unusable("listening on " + options.host +
                    " without tokens lets every machine that reaches it join the run: name a "
                    "token file with --token-file, say --insecure if you trust that network, or "
                    "listen on 127.0.0.1");
  }
  if (!open && options.insecure) {
    return unusable("--insecure lets everybody enter, and --token-file does not: say one of them");
  }
  return Error{};
}

/// Is the token still there? Another secret under its name revokes the holders of this one.
bool is_kept(const Token& token, const Tokens& now) {
  const Token* same = now.find(token.name);
  return same != nullptr && same->secret.same_as(token.secret);
}

Error revoked(const std::string& token) {
  return {ErrorCode::refused, "the token \"" + token + "\" has been revoked"};
}

std::string opens_only(const Token& token, const std::string& run) {
  return "the token \"" + token.name + "\" opens " + token.opens_text() + ", not \"" + run + "\"";
}

Error check(const RunOptions& options) {
  if (!is_plain_name(options.run, kRunNameBytesMax)) {
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
          [this](const std::string& name, const Caller& caller) -> Result<Connections*> {
            const auto found = run_for(name, caller);
            if (!found) return found.error();
            return &found.value()->connections();
          },
          [this](const StatusRequest& request, const Caller& caller) {
            return status(request, caller);
          }) {}

Result<std::uint16_t> MasterServer::start() {
  if (Error error = check(options_); error.failed()) return error;
  if (Error error = check(to_serve_); error.failed()) return error;
  if (!options_.token_file.empty()) {
    auto files = read_master_files(options_.token_file);
    if (!files) return files.error();
    entrance_ = std::make_shared<Entrance>(
        Entrance{KeyPair::from(files.value().key), std::move(files.value().tokens)});
  }
  auto port = reception_.listen(options_.host, options_.port, entrance_);
  if (!port) return unusable("argument --listen: " + port.error().text);
  const bool several = to_serve_.size() > 1;
  for (ServedRun& run : to_serve_) {
    const std::string name = run.options.run;
    const std::string prefix = several ? "run \"" + name + "\": " : "";
    auto& server = runs_[name];
    server = std::make_unique<RunServer>(network_, options_, std::move(run), prefix, [this] {
      std::size_t peers = 0;
      for (const auto& [_, served] : runs_) peers += served->connections().count();
      return peers;
    });
    if (entrance_) {
      server->use_key(entrance_->key.secret());
      server->tokens_are(valid_for(name), {});
    }
    if (Error error = server->start(); error.failed()) {
      error.text = prefix + error.text;
      return error;
    }
  }
  to_serve_.clear();
  return port;
}

void MasterServer::stop(bool ends_wait, std::function<void()> done) {
  reception_.stop_listening();
  const auto all = std::make_shared<std::size_t>(runs_.size());
  if (*all == 0) return network_.clock().post(std::move(done));
  for (const auto& [name, server] : runs_) {
    server->stop(ends_wait, [all, done] {
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

Result<RunServer*> MasterServer::run_for(const std::string& name, const Caller& caller) {
  if (!entrance_) return run(name);
  // The line may have been taken away or replaced since the handshake.
  const Token* token = entrance_->tokens.find(caller.token);
  if (token == nullptr || !token->secret.same_as(caller.secret)) return revoked(caller.token);
  const auto found = run(name);
  if (!found && !token->runs.empty() && !token->opens(name)) {  // it need not learn of other runs
    return Error{ErrorCode::refused, opens_only(*token, name)};
  }
  if (!found) return found.error();
  if (const std::string& served = found.value()->options().run; !token->opens(served)) {
    return Error{ErrorCode::refused, opens_only(*token, served)};
  }
  if (found.value()->is_revoked(mark_of(*token))) return revoked(token->name);
  return found;
}

TokenMark MasterServer::mark_of(const Token& token) const {
  return {token.name, token_mark(entrance_->key.secret(), token).disclosed()};
}

std::vector<TokenMark> MasterServer::valid_for(const std::string& run) const {
  std::vector<TokenMark> valid;
  for (const Token& token : entrance_->tokens.all()) {
    if (token.opens(run)) valid.push_back(mark_of(token));
  }
  return valid;
}

void MasterServer::reload_tokens() {
  if (!entrance_) return;
  read_tokens_again_ = reading_tokens_;
  if (std::exchange(reading_tokens_, true)) return;
  const auto read = std::make_shared<std::optional<Result<MasterFiles>>>();
  network_.in_background(
      [read, path = options_.token_file] { read->emplace(read_master_files(path)); },
      [this, alive = std::weak_ptr(entrance_), read] {
        if (alive.expired()) return;
        reading_tokens_ = false;
        Result<MasterFiles>& files = **read;
        std::string wrong = files.error().text;
        if (files && KeyPair::from(files.value().key).public_key() != entrance_->key.public_key()) {
          wrong = "the key file " + key_path(options_.token_file) +
                  " holds another key than at the start of this master: start it again";
        }
        if (!wrong.empty()) {
          log_error(wrong + "; the tokens of before stay");
        } else {
          take_tokens(std::move(files.value().tokens));
        }
        if (read_tokens_again_) reload_tokens();
      });
}

void MasterServer::take_tokens(Tokens tokens) {
  const Tokens before = std::exchange(entrance_->tokens, std::move(tokens));
  const Tokens& now = entrance_->tokens;
  std::string names;
  std::vector<TokenMark> gone;
  for (const Token& token : before.all()) {
    if (is_kept(token, now)) continue;
    add_to_list(names, token.name);
    gone.push_back(mark_of(token));
  }
  std::string before_names;  // whose lines are in the file, and open nothing
  for (const Token& token : now.all()) {
    const bool revoked = std::any_of(runs_.begin(), runs_.end(), [&](const auto& run) {
      return run.second->is_revoked(mark_of(token));
    });
    if (revoked) add_to_list(before_names, token.name);
  }
  log_info("the token file " + options_.token_file +
           " was read again; tokens: " + std::to_string(now.all().size()) +
           (before_names.empty() ? "" : ", of which revoked before: " + before_names) +
           (names.empty() ? "" : "; revoked: " + names));
  for (const auto& [name, server] : runs_) server->tokens_are(valid_for(name), gone);
}

/// The names of the runs that the caller may ask about.
MasterToPeer MasterServer::names(const Caller& caller) {
  Status status;
  status.package = options_.package;
  status.state = "several";
  for (const auto& [name, server] : runs_) {
    if (run_for(name, caller)) status.runs.push_back(name);
  }
  if (!status.runs.empty()) return status;
  return Refuse{run_for("", caller).error()};
}

MasterToPeer MasterServer::status(const StatusRequest& request, const Caller& caller) {
  if (request.all && request.run.empty() && runs_.size() > 1) return names(caller);
  const auto found = run_for(request.run, caller);
  if (!found) return Refuse{found.error()};
  return found.value()->status();
}

}  // namespace pccl::master
