// See the header. The order of things: an event is applied when those before it have been, and none
// while a write of the register is waited for; its answer comes first then.
#include "master/server.h"

#include <algorithm>
#include <optional>
#include <variant>
#include <vector>

#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "membership/master_rules.h"
#include "membership/members.h"
#include "membership/status.h"
#include "transport/network.h"
#include "wire/cbor.h"

namespace pccl::master {
static_assert(kStoreQueuedBytesMax < kUnreadBytesOfAllMax);  // the store is refused first
namespace {

/// An address that only this machine reaches.
bool is_loopback(const std::string& host) {
  const bool numeric = host.find_first_not_of("0123456789.") == std::string::npos;
  return host == "localhost" || host == "::1" || (numeric && host.starts_with("127."));
}

Error check(const MasterOptions& options) {
  const auto invalid = [](std::string text) { return Error{ErrorCode::invalid, std::move(text)}; };
  if (!options.insecure && !is_loopback(options.host)) {
    return invalid("listening on " + options.host +
                   " lets every machine that reaches it join the run, and there are no tokens yet: "
                   "say --insecure if you trust that network, or listen on 127.0.0.1");
  }
  if (options.run.empty() || options.run.size() > kRunNameBytesMax) {
    return invalid("the run name has " + std::to_string(options.run.size()) +
                   " bytes; it takes 1 to " + std::to_string(kRunNameBytesMax));
  }
  if (options.min_peers == 0) return invalid("min_peers is 0; a run is founded by at least 1");
  if (options.hold_below == 0) return invalid("hold_below is 0; it is at least 1");
  if (options.max_peers < options.min_peers || options.max_peers > kMembersMax) {
    return invalid("max_peers is " + std::to_string(options.max_peers) +
                   "; it is at least min_peers, " + std::to_string(options.min_peers) +
                   ", and at most " + std::to_string(kMembersMax));
  }
  if (options.adopt && options.refound) {
    return invalid("adopt and refound: members that the register does not know go on, or do not");
  }
  if (options.heartbeat_ms == 0) return invalid("heartbeat_ms is 0; it is at least 1");
  if (options.silence_ms < 2 * options.heartbeat_ms) {
    return invalid("silence_ms is " + std::to_string(options.silence_ms) +
                   ", less than two heartbeats of " + std::to_string(options.heartbeat_ms) +
                   " ms: every peer would be evicted");
  }
  return Error{};
}

State fresh_state(const MasterOptions& options) {
  State state;
  state.config.run = options.run;
  state.config.min_peers = options.min_peers;
  state.config.hold_below = options.hold_below;
  state.config.max_peers = options.max_peers;
  state.config.adopt = options.adopt;
  state.config.refound = options.refound;
  return state;
}

}  // namespace

MasterServer::MasterServer(Network& network, MasterOptions options,
                           std::shared_ptr<RegisterStore> held)
    : network_(network),
      clock_(network.clock()),
      options_(std::move(options)),
      register_(std::move(held)),
      connections_(network, *this, options_.heartbeat_ms, options_.silence_ms),
      state_(fresh_state(options_)) {}

MasterServer::~MasterServer() = default;

Result<std::uint16_t> MasterServer::start() {
  if (Error error = check(options_); error.failed()) return error;
  auto port = connections_.listen(options_.host, options_.port);
  if (!port) return port.error();
  if (!register_ && options_.state_file.empty()) register_ = make_memory_register();
  if (!register_) {
    auto opened =
        open_register_file(options_.state_file, options_.run, options_.adopt || options_.refound);
    if (!opened) return opened.error();
    register_ = std::move(opened).value();
  }
  started_ms_ = clock_.now_ms();
  waiting_timer_ =
      clock_.timer(options_.say_waiting_ms, options_.say_waiting_ms, [this] { say_waiting(); });
  clock_timer_ =
      clock_.timer(kClockMs, kClockMs, [this] { post(Clock{clock_.now_ms() / 1000, unix_s()}); });
  if (register_->shared()) {
    state_.config.shared = true;
    lease_timer_ =
        clock_.timer(options_.lease_renew_ms, options_.lease_renew_ms, [this] { renew_lease(); });
    renew_lease();
    return port;
  }
  auto held = register_->read();
  if (!held) return held.error();
  take_charge(std::move(held).value());
  return port;
}

/// --again opens the run that was finished when this process began, and no other one.
void MasterServer::take_charge(Register held) {
  if (!found_) found_ = held;
  state_.config.again = options_.again && found_->ended == held.ended;
  in_charge_ = true;
  post(TakenOver{std::move(held)});
}

// ------------------------------------------------------------------------------- what has happened

void MasterServer::connected(Hello hello, std::uint64_t connection) {
  const PeerId peer = hello.member.peer();
  store_drop(peer);  // its answers would go to a connection that has not asked
  if (!in_charge_) {
    connections_.send(
        peer, Hold{"it stands by: " + (idle_why_.empty() ? "it has just begun" : idle_why_)});
    return connections_.close(peer);
  }
  if (!hello.package.empty() && hello.package != options_.package) {
    log_info(connections_.remote(peer) + " runs pccl " + printable(hello.package) +
             ", this master " + options_.package);
  }
  post(PeerConnected{std::move(hello)}, connection);
}

MasterToPeer MasterServer::asked(const StatusRequest& request) {
  const std::uint64_t now = clock_.now_ms();
  if (now - answers_since_ms_ >= 1000) {
    answers_since_ms_ = now;
    answers_ = 0;
  }
  if (++answers_ > kStatusPerSecondMax) {
    return Refuse{Error{ErrorCode::refused, "this master answers " +
                                                std::to_string(kStatusPerSecondMax) +
                                                " status requests in a second: ask again"}};
  }
  if (!request.run.empty() && request.run != options_.run) {
    return Refuse{Error{ErrorCode::refused, "this master serves run \"" + options_.run + "\""}};
  }
  Status status = status_of(state_, connections_.seen());
  status.package = options_.package;
  status.up_ms = now - started_ms_;
  status.waits_for = cut_text(whom_it_waits_for());
  if (!in_charge_) {
    status.state = "standby";
    status.waits_for = cut_text(idle_why_);
  }
  for (const Said& said : said_) {
    status.events.push_back({now - said.at_ms, said.warning, said.text});
  }
  return status;
}

void MasterServer::say(bool warning, const std::string& text) {
  const std::string shown = printable(text);  // parts of it may be a peer's
  log(warning ? LogLevel::warning : LogLevel::info, shown);
  while (said_.size() >= kStatusEventsMax) said_.pop_front();
  said_.push_back(
      {clock_.now_ms(), warning, std::string(cbor::cut_utf8(shown, kStatusTextBytesMax))});
}

void MasterServer::message(PeerId peer, PeerToMaster message) {
  if (auto* request = std::get_if<StoreRequest>(&message)) {
    return store_request(peer, std::move(*request));
  }
  post(PeerMessage{peer, std::move(message)});
}

void MasterServer::disconnected(PeerId peer, std::string remote, std::string why) {
  // A member that does not come back has a line of its own, and so has one that left.
  const LogLevel level = is_own_member(state_, peer) ? LogLevel::debug : LogLevel::info;
  log(level, "the connection of " + name(state_, peer) + " (" + remote + ") has closed: " + why);
  store_drop(peer);
  post(PeerDisconnected{peer});
}

void MasterServer::gone(PeerId peer, std::string why) {
  store_drop(peer);
  post(PeerGone{peer, std::move(why)});
}

void MasterServer::woke(std::uint64_t) {
  post(Clock{clock_.now_ms() / 1000, unix_s()});  // the time of waking, and not of falling asleep
  post(Woke{});
  if (lease_timer_) renew_lease();
}

void MasterServer::post(Event event, std::uint64_t connection) {
  if (!in_charge_) return;
  events_.push_back({std::move(event), connection});
  drain();
}

void MasterServer::drain() {
  if (draining_) return;  // an action has led to an event: the loop below takes it
  draining_ = true;
  while (!events_.empty() && write_ == 0) {
    const auto [event, connection] = std::move(events_.front());
    events_.pop_front();
    if (const auto* connected = std::get_if<PeerConnected>(&event)) {
      connections_.admit(connected->hello.member.peer(), connection);
    }
    for (const Action& action : step(state_, event)) carry_out(action);
  }
  draining_ = false;
  finish_stop();
}

// ------------------------------------------------------------------------------ what is to be done

void MasterServer::carry_out(const Action& action) {
  struct Visitor {
    MasterServer& server;
    void operator()(const Send& a) const { server.carry_out(a); }
    void operator()(const SendAll& a) const { server.carry_out(a); }
    void operator()(const WriteRegister& a) const { server.carry_out(a); }
    void operator()(const Close& a) const {
      if (!server.connections_.admitted(a.peer)) return;
      server.store_drop(a.peer);
      server.connections_.close(a.peer);
    }
    void operator()(const StartTimer& a) const { server.carry_out(a); }
    void operator()(const StopTimer& a) const { server.timers_.erase({a.kind, a.peer}); }
    void operator()(const Say& a) const { server.say(a.warning, a.text); }
    void operator()(const Deposed& a) const { server.carry_out(a); }
    void operator()(const RunOver&) const {
      server.store_.clear();  // the keys of a run that is over would mislead the next
    }
  };
  std::visit(Visitor{*this}, action);
}

void MasterServer::carry_out(const Send& action) {
  if (!connections_.admitted(action.peer)) return;
  if (const auto* welcome = std::get_if<Welcome>(&action.message)) {
    Welcome filled = *welcome;
    filled.heartbeat_ms = options_.heartbeat_ms;
    filled.silence_ms = options_.silence_ms;
    filled.package = options_.package;
    return connections_.send(action.peer, filled);
  }
  connections_.send(action.peer, action.message);
}

void MasterServer::carry_out(const SendAll& action) {
  std::vector<PeerId> to;
  for (const PeerId p : action.peers) {
    if (connections_.admitted(p)) to.push_back(p);
  }
  connections_.send(to, action.message);
}

void MasterServer::carry_out(const StartTimer& action) {
  const auto duration_ms = [&] {
    switch (action.kind) {
      case TimerKind::patience:
        return options_.patience_ms;
      case TimerKind::founding:
        return options_.founding_delay_ms;
      case TimerKind::refound: {
        // They may still be with a master before this one that is cut off from the register.
        const bool started_here = state_.held && state_.held->epoch &&
                                  state_.held->epoch->id.incarnation() == state_.held->incarnation;
        return options_.refound_after_ms +
               (register_->shared() && !started_here ? options_.lease_lapse_ms : 0);
      }
      case TimerKind::absence:
        break;
    }
    return options_.absence_ms;
  }();
  timers_[{action.kind, action.peer}] = clock_.timer(
      duration_ms, 0, [this, kind = action.kind, peer = action.peer] { timer_ended(kind, peer); });
}

void MasterServer::timer_ended(TimerKind kind, PeerId peer) {
  timers_.erase({kind, peer});
  switch (kind) {
    case TimerKind::patience:
      return post(PatienceOver{});
    case TimerKind::founding:
      return post(FoundingOver{});
    case TimerKind::refound:
      return post(RefoundOver{});
    case TimerKind::absence:
      return post(PeerGone{
          peer, "its connection closed and was not back within " + seconds(options_.absence_ms)});
  }
}

// ------------------------------------------------------------------------------------ the register

void MasterServer::carry_out(const WriteRegister& action) {
  write_ = ++writes_;
  register_busy_ = true;
  write_deadline_ = clock_.timer(options_.register_deadline_ms, 0, [this] {
    answer_write(RegisterUnanswered{});
    log_warning("the register was not written within " + seconds(options_.register_deadline_ms));
  });
  const auto answer = std::make_shared<std::optional<Result<bool>>>();
  network_.in_background(
      [store = register_, answer, from = action.from, to = action.to] {
        answer->emplace(store->compare_and_write(from, to));
      },
      [this, alive = std::weak_ptr(alive_), answer, write = write_, to = action.to] {
        if (alive.expired()) return;
        register_busy_ = false;
        register_answered(write, **answer, to);
      });
}

void MasterServer::register_answered(std::uint64_t write, const Result<bool>& answer,
                                     const Register& value) {
  if (write != write_) return;  // too late: it has been given up
  if (!answer.ok()) {
    log_error("the register could not be written: " + answer.error().text);
    return answer_write(RegisterUnanswered{});
  }
  answer_write(RegisterWritten{value, answer.value()});
}

void MasterServer::answer_write(Event event) {
  write_ = 0;
  write_deadline_.reset();
  events_.push_front({std::move(event), 0});
  drain();
}

void MasterServer::carry_out(const Deposed& action) {
  log_warning("this master is deposed: " + action.why +
              "; it closes its connections and takes over " +
              "again after reading the register anew");
  step_down(action.why);
  take_over_later();
}

/// It knows nothing any more. Its peers are told why before their connections close.
void MasterServer::step_down(const std::string& why) {
  connections_.send_all(Hold{"the master steps down: " + why});
  in_charge_ = false;
  idle_why_ = why;
  write_ = 0;
  write_deadline_.reset();
  events_.clear();
  timers_.clear();
  store_timers_.clear();
  store_ = KeyValueStore();
  held_requests_ = HeldRequests();
  connections_.close_all();
  const Config config = state_.config;  // with the questions that were answered
  state_ = State{};
  state_.config = config;
}

void MasterServer::take_over_later() {
  take_over_timer_ = clock_.timer(kTakeOverAgainMs, 0, [this] { take_over(); });
}

void MasterServer::take_over() {
  if (in_charge_ || stopped_) return;
  if (register_->shared() && !has_lease_) return;  // it comes with the lease
  if (register_busy_) {
    log_warning("the register still does not answer; it is read when it does");
    return take_over_later();
  }
  register_busy_ = true;
  const auto held = std::make_shared<std::optional<Result<Register>>>();
  network_.in_background([store = register_, held] { held->emplace(store->read()); },
                         [this, alive = std::weak_ptr(alive_), held] {
                           if (alive.expired()) return;
                           register_busy_ = false;
                           if (!(*held)->ok()) {
                             idle_why_ = "the register could not be read: " + (*held)->error().text;
                             log_error(idle_why_);
                             return take_over_later();
                           }
                           if (in_charge_ || stopped_ || (register_->shared() && !has_lease_))
                             return;
                           take_charge(std::move(*held)->value());
                         });
}

// ------------------------------------------------------------------------------------- the lease

void MasterServer::renew_lease() {
  if (lease_busy_ || stopped_) return;
  lease_busy_ = true;
  const auto answer = std::make_shared<std::optional<Result<bool>>>();
  const auto holder = std::make_shared<std::string>();
  const auto found = std::make_shared<std::optional<Result<Register>>>();
  network_.in_background(
      [store = register_, answer, holder, found, looks = options_.again && !found_] {
        if (looks) found->emplace(store->read());
        answer->emplace(store->hold());
        *holder = store->holder();
      },
      [this, alive = std::weak_ptr(alive_), answer, holder, found] {
        if (alive.expired()) return;
        lease_busy_ = false;
        if (*found && (*found)->ok()) found_ = std::move(*found)->value();
        lease_answered(**answer, *holder);
      });
}

void MasterServer::lease_answered(const Result<bool>& answer, const std::string& holder) {
  const std::uint64_t now = clock_.now_ms();
  if (!answer.ok()) {
    // Commits need no register. Who is in charge stays so, until a standby that reaches the
    // register while it does not may have waited long enough to give its members up.
    const std::string why = "the lease could not be renewed: " + answer.error().text;
    if (!lease_failed_) log_warning(why);
    lease_failed_ = true;
    if (!in_charge_) {
      idle_why_ = why;
    } else if (now - lease_renewed_ms_ > options_.lease_lapse_ms) {
      log_warning("this master has been without its lease for " + seconds(now - lease_renewed_ms_) +
                  ": it stands by");
      has_lease_ = false;
      step_down(why);
    }
    return;
  }
  if (lease_failed_) log_info("the register answers again");
  lease_failed_ = false;
  if (!answer.value()) {
    has_lease_ = false;
    const std::string why = holder + " holds the lease of this run";
    if (in_charge_) {
      log_warning("this master is deposed: " + why + "; it closes its connections and stands by");
      step_down(why);
    } else if (idle_why_ != why) {
      log_info("standing by: " + why);
      idle_why_ = why;
    }
    return;
  }
  lease_renewed_ms_ = now;
  if (std::exchange(has_lease_, true)) return;
  log_info("this master holds the lease of the run");
  take_over();
}

// --------------------------------------------------------------------------------------- the store

void MasterServer::store_request(PeerId peer, StoreRequest request) {
  if (connections_.has_room(peer) && !held_requests_.any(peer)) return serve(peer, request);
  hold(peer, std::move(request));
}

void MasterServer::hold(PeerId peer, StoreRequest request) {
  if (held_requests_.hold(peer, std::move(request))) return;
  const std::string why = "it goes on asking the store without reading the answers";
  log_warning("gives up " + name(state_, peer) + " at " + connections_.remote(peer) + ": " + why);
  connections_.give_up(peer, why);
}

void MasterServer::room(PeerId peer) {
  while (connections_.has_room(peer)) {
    const auto held = held_requests_.next(peer);
    if (!held) return;
    if (!held->refused) {
      serve(peer, held->request);
    } else {
      connections_.send(peer,
                        no_room(held->request.id, "this peer does not read what it has asked for"));
    }
  }
}

void MasterServer::serve(PeerId peer, const StoreRequest& request) {
  store_answers(store_.request(peer, request));
  const Waiter waiter{peer, request.id};
  if (!store_.waits(waiter) || store_timers_.contains(waiter)) return;
  store_timers_[waiter] = clock_.timer(request.timeout_ms, 0, [this, waiter] {
    if (auto answer = store_.expire(waiter)) store_answers({*std::move(answer)});
  });
}

void MasterServer::store_answers(const std::vector<StoreAnswer>& answers) {
  for (const StoreAnswer& answer : answers) {
    if (!store_.waits(answer.to)) store_timers_.erase(answer.to);
    if (answer.waited && !connections_.has_room(answer.to.peer)) {
      hold(answer.to.peer, *answer.waited);  // several keys at once: it asks again when it has read
      continue;
    }
    const std::size_t bytes = value_bytes(answer.reply);
    if (bytes > kStoreSmallBytes && connections_.queued_bytes() + bytes > kStoreQueuedBytesMax) {
      connections_.send(answer.to.peer,
                        no_room(answer.to.request, "its peers do not read what it has sent them"));
    } else {
      connections_.send(answer.to.peer, answer.reply);
    }
  }
}

void MasterServer::store_drop(PeerId peer) {
  held_requests_.drop(peer);
  store_.drop(peer);
  const auto first = store_timers_.lower_bound(Waiter{peer, 0});
  auto last = first;
  while (last != store_timers_.end() && last->first.peer == peer) ++last;
  store_timers_.erase(first, last);
}

// -------------------------------------------------------------------------------- waiting, the end

void MasterServer::say_waiting() {
  const std::string whom = whom_it_waits_for();
  const std::uint64_t now = clock_.now_ms();
  if (whom != said_waiting_) say_again_ms_ = 0;
  if (!whom.empty() && (say_again_ms_ == 0 || now - said_waiting_ms_ >= say_again_ms_)) {
    log_info(whom);
    said_waiting_ms_ = now;
    say_again_ms_ = say_again_ms_ == 0 ? options_.say_waiting_ms : 2 * say_again_ms_;
  }
  said_waiting_ = whom;
  // The ranks of a replica are started together: what they lack for longer is worth a word.
  const auto before = std::exchange(incomplete_, incomplete(state_));
  std::set<std::string> said;
  for (const auto& [p, text] : incomplete_) {
    const auto known = before.find(p);
    if (known == before.end() || known->second != text) continue;
    said.insert(text);
    if (said_incomplete_.contains(text)) continue;
    connections_.send(p, Hold{text});
  }
  for (const std::string& text : said) {
    if (!said_incomplete_.contains(text)) log_warning(text);
  }
  said_incomplete_ = std::move(said);
}

std::string MasterServer::whom_it_waits_for() const {
  if (!in_charge_) {
    const bool standby = register_->shared() && !has_lease_ && !lease_failed_;
    return standby ? "" : "waiting for the register: " + idle_why_;
  }
  if (write_ != 0) return "waiting for the register to be written";
  if (state_.running || !state_.held) return "";
  const auto name = [&](const std::vector<Member>& members, const Member& member) {
    const std::string remote = connections_.remote(member.peer());
    return " " + name_of(members, member) + (remote.empty() ? "," : " at " + remote + ",");
  };
  if (state_.proposal) {
    std::string text = "epoch " + to_string(state_.proposal->id) + " waits until ready are:";
    for (const Member& member : state_.proposal->members) {
      if (!state_.ready.contains(member.peer())) text += name(state_.proposal->members, member);
    }
    text.pop_back();
    return text;
  }
  if (state_.held->ended) return "";
  if (!state_.held->epoch || state_.held->over) {
    return "waiting for " + std::to_string(options_.min_peers) + " replicas to found the run \"" +
           options_.run + "\"; " + count_of(state_.peers.size(), "peer") + " connected";
  }
  std::string text = "waiting for members of epoch " + to_string(state_.held->epoch->id) + ":";
  const std::size_t nobody = text.size();
  for (const Member& member : state_.held->epoch->members) {
    if (!state_.peers.contains(member.peer())) text += name(state_.held->epoch->members, member);
  }
  if (text.size() == nobody) return "";
  text.pop_back();
  return text;
}

void MasterServer::stop(std::function<void()> done) {
  stopped_ = std::move(done);
  stop_by_ms_ = clock_.now_ms() + options_.register_deadline_ms + kStopMs;
  connections_.stop_listening();
  stop_timer_ = clock_.timer(10, 10, [this] { finish_stop(); });
  post(OperatorStops{});
}

void MasterServer::finish_stop() {
  if (!stopped_) return;
  if (clock_.now_ms() < stop_by_ms_) {
    if (in_charge_ && (write_ != 0 || !events_.empty())) return;
    if (!connections_.all_sent()) return;
    if (register_busy_ || lease_busy_) return;
  }
  stop_timer_.reset();
  in_charge_ = false;
  connections_.close_all();
  auto done = std::exchange(stopped_, nullptr);
  if (!std::exchange(has_lease_, false)) {
    clock_.post(std::move(done));
    return;
  }
  network_.in_background([store = register_] { store->release(); }, std::move(done));
}

}  // namespace pccl::master
