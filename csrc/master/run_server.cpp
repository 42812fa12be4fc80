// See the header. Order: an event is applied after all events before it. While a write of the
// register is in flight no event is applied; the answer of the register comes first.
#include "master/run_server.h"

#include <algorithm>
#include <optional>
#include <variant>
#include <vector>

#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "master/addresses.h"
#include "membership/members.h"
#include "membership/status.h"
#include "transport/network.h"
#include "transport/sys.h"
#include "trust/token.h"
#include "wire/cbor.h"

namespace pccl::master {
namespace {

State fresh_state(const RunOptions& options) {
  State state;
  state.config.run = options.run;
  state.config.min_peers = options.min_peers;
  state.config.hold_below = options.hold_below;
  state.config.max_peers = options.max_peers;
  state.config.measure_links = options.measure_links;
  state.config.adopt = options.adopt;
  state.config.refound = options.refound;
  state.config.heartbeat_ms = options.heartbeat_ms;
  state.config.patience_ms = options.patience_ms;
  state.config.refound_after_ms = options.refound_after_ms;
  state.config.lapse_ms = options.lease_lapse_ms;
  return state;
}

}  // namespace

RunServer::RunServer(Network& network, const MasterOptions& master, ServedRun run,
                     std::string log_prefix, std::function<std::size_t()> peers_of_all_runs)
    : network_(network),
      clock_(network.clock()),
      master_(master),
      options_(std::move(run.options)),
      log_prefix_(std::move(log_prefix)),
      peers_of_all_runs_(std::move(peers_of_all_runs)),
      register_(std::move(run.held)),
      connections_(clock_, *this, options_.heartbeat_ms, options_.silence_ms, log_prefix_),
      state_(fresh_state(options_)),
      store_(clock_, connections_,
             {[this](PeerId peer) { return owner_of(peer); },
              [this](PeerId peer, const std::string& why) { give_up(peer, why); }}) {}

RunServer::~RunServer() = default;

Error RunServer::start() {
  if (!register_ && options_.state_file.empty()) register_ = make_memory_register();
  if (!register_) {
    auto opened =
        open_register_file(options_.state_file, options_.run, options_.adopt || options_.refound);
    if (!opened) return opened.error();
    register_ = std::move(opened).value();
  }
  connections_.begin();
  started_ms_ = clock_.now_ms();
  waiting_timer_ =
      clock_.timer(options_.say_waiting_ms, options_.say_waiting_ms, [this] { say_waiting(); });
  clock_timer_ = clock_.timer(kClockMs, kClockMs, [this] { tick(); });
  if (register_->shared()) {
    state_.config.shared = true;
    lease_timer_ =
        clock_.timer(options_.lease_renew_ms, options_.lease_renew_ms, [this] { renew_lease(); });
    renew_lease();
    return Error{};
  }
  auto held = register_->read();
  if (!held) return held.error();
  if (std::string why = lockout_of(held.value()); !why.empty()) return {ErrorCode::refused, why};
  take_charge(std::move(held).value());
  return Error{};
}

void RunServer::use_key(const Secret& master) {
  marks_ = EpochMarks(master, options_.run);
  state_.config.key = key_mark(master, options_.run).disclosed();
}

std::string RunServer::lockout_of(const Register& held) const {
  return lockout(held, state_.config, tokens_ ? tokens_->valid : std::vector<TokenMark>());
}

/// --again names the ending that it opens. So it opens none that comes later, however often the
/// master is started with it.
void RunServer::take_charge(Register held) {
  lockout_.clear();
  state_.config.again = options_.again != 0 && held.ended && held.ended->unix_s == options_.again;
  if (options_.again != 0 && held.ended && !state_.config.again) {
    log_line(LogLevel::info, "--again names another ending than that of the run");
  }
  in_charge_ = true;
  tell_time();
  post(TakenOver{std::move(held)});
  if (tokens_) post(*tokens_);
}

void RunServer::tokens_are(std::vector<TokenMark> valid, std::vector<TokenMark> gone) {
  // A name that has a new secret is gone for those who are here. Who comes back after a take-over
  // holds the new one.
  TokensAre now{valid, {}};
  std::erase_if(now.valid, [&](const TokenMark& one) {
    return std::any_of(gone.begin(), gone.end(),
                       [&](const TokenMark& other) { return other.name == one.name; });
  });
  // What is gone while another master is in charge is written when this one takes over.
  if (tokens_) gone.insert(gone.begin(), tokens_->gone.begin(), tokens_->gone.end());
  if (gone.size() > kRevokedMax) {
    gone.erase(gone.begin(), gone.end() - static_cast<std::ptrdiff_t>(kRevokedMax));
  }
  now.gone = gone;
  tokens_ = TokensAre{std::move(valid), std::move(gone)};
  looked_ms_ = 0;  // the file may have been the reason to stand back
  post(std::move(now));
}

bool RunServer::is_revoked(const TokenMark& token) const {
  return state_.held && master::is_revoked(*state_.held, token);
}

// ------------------------------------------------------------------------------- what has happened

/// Are there descriptors for a further peer? Strangers that have proven nothing take some (gate.h),
/// and they keep nobody out: so their share counts as taken whether it is or not.
bool RunServer::has_descriptors() const {
  const std::size_t all = master_.descriptors > 0 ? master_.descriptors : descriptors_max();
  const std::size_t kept = std::min(2 * kDescriptorsLeft, all / 2);
  return peers_of_all_runs_() + kept < all;
}

Error RunServer::refusal(const Hello& hello, bool again) const {
  const EpochId started = hello.report.started.value_or(EpochId{});
  for (const auto& [epoch, how, mark] :
       {std::tuple(started, Named::started, hello.started_mark),
        std::tuple(hello.report.accepted, Named::proposed, hello.accepted_mark)}) {
    if (marks_.is_marked(epoch, how, mark)) continue;
    return {ErrorCode::refused, "it reports epoch " + to_string(epoch) + " of run \"" +
                                    options_.run + "\", which no master with this key has " +
                                    (how == Named::started ? "started" : "named")};
  }
  // What a process that comes back reports, or the register that is being read, may make it a
  // member.
  const bool known = again || !state_.holds || hello.report.started.has_value() ||
                     is_own_member(state_, hello.member.peer());
  if (in_charge_ && !known && !has_descriptors()) {
    return {ErrorCode::refused,
            "this master keeps its last descriptors for members that come back: raise its limit of "
            "open files (ulimit -n)"};
  }
  // The core refuses other peers in their turn.
  return again && in_charge_ && state_.holds ? check_hello(state_, hello) : Error{};
}

void RunServer::connected(Hello hello, std::uint64_t connection) {
  const PeerId peer = hello.member.peer();
  store_.drop(peer);  // its answers would go to the new connection, which has not asked
  if (!in_charge_) {
    connections_.send(
        peer, Hold{"it stands by: " + (idle_why_.empty() ? "it has just begun" : idle_why_)});
    return connections_.close(peer);
  }
  if (!hello.package.empty() && hello.package != master_.package) {
    log_line(LogLevel::info, connections_.remote(peer) + " runs pccl " + printable(hello.package) +
                                 ", this master " + master_.package);
  }
  std::string origin = origin_of(hello.member.token, connections_.remote(peer));
  post(PeerConnected{std::move(hello), std::move(origin)}, connection);
}

Status RunServer::status() const {
  const std::uint64_t now = clock_.now_ms();
  State standby;
  standby.config = state_.config;
  standby.held = before_write_;
  Status status = status_of(in_charge_ ? state_ : standby, connections_.seen());
  status.package = master_.package;
  status.up_ms = now - started_ms_;
  if (status.waits_for.empty()) status.waits_for = cut_text(whom_it_waits_for());
  if (!in_charge_) {
    status.state = "standby";
    status.waits_for = cut_text(idle_why_);
  }
  for (const Said& said : said_) {
    status.events.push_back({now - said.at_ms, said.warning, said.text});
  }
  return status;
}

void RunServer::say(bool warning, const std::string& text, const std::string& origin) {
  const auto more = origin.empty() ? std::string() : lines_.admit(origin, text, clock_.now_ms());
  if (!more) return;
  const std::string shown = printable(text) + *more;  // parts of it may be a peer's
  log_line(warning ? LogLevel::warning : LogLevel::info, shown);
  while (said_.size() >= kStatusEventsMax) said_.pop_front();
  said_.push_back({clock_.now_ms(), warning, cut_at_word(shown, kStatusTextBytesMax)});
}

void RunServer::message(PeerId peer, PeerToMaster message, std::size_t bytes) {
  if (auto* request = std::get_if<StoreRequest>(&message)) {
    return store_.request(peer, std::move(*request));
  }
  if (!in_charge_) return;
  if (write_ == 0) return post(PeerMessage{peer, std::move(message)});
  if (!unapplied_.add(peer, bytes)) {
    return connections_.give_up(peer,
                                "it sends more while the register is written than this "
                                "master has room for");
  }
  events_.push_back({PeerMessage{peer, std::move(message)}, 0, bytes});
}

void RunServer::disconnected(PeerId peer, std::string remote, std::string why) {
  const std::string whose = "the connection of " + name(state_, peer) + " (" + remote + ")";
  if (is_own_member(state_, peer)) {
    // A member that does not come back, or that left, has a log line of its own.
    log_line(LogLevel::debug, whose + " has closed: " + why);
  } else if (const auto more = closed_.admit(origin_of("", remote), whose, clock_.now_ms())) {
    log_line(LogLevel::info, whose + " has closed: " + why + *more);
  }
  store_.drop(peer);
  post(PeerDisconnected{peer});
}

void RunServer::gone(PeerId peer, std::string why) {
  store_.drop(peer);
  post(PeerGone{peer, std::move(why)});
}

void RunServer::woke(std::uint64_t) {
  tell_time();  // the time after the stop, not before it
  post(Woke{});
  if (lease_timer_) renew_lease();
}

void RunServer::tell_time() { post(Clock{clock_.now_ms() / 1000, unix_s()}); }

void RunServer::tick() {
  tell_time();
  // The run need not wait for a member whose process was seen to have ended.
  if (!in_charge_ || !state_.held || !state_.held->epoch) return;
  std::vector<PeerId> ended;
  for (const Member& member : state_.held->epoch->members) {
    const auto seat = state_.seats.find(member.peer());
    const bool away = seat != state_.seats.end() && !state_.peers.contains(member.peer());
    if (away && !seat->second.dead && network_.ended(member.process))
      ended.push_back(member.peer());
  }
  for (const PeerId peer : ended) post(PeerDied{peer});
}

void RunServer::post(Event event, std::uint64_t connection) {
  if (!in_charge_) return;
  events_.push_back({std::move(event), connection});
  drain();
}

void RunServer::drain() {
  if (draining_) return;  // an action has led to an event: the loop below takes it
  draining_ = true;
  while (!events_.empty() && write_ == 0) {
    const auto [event, connection, counted] = std::move(events_.front());
    events_.pop_front();
    if (counted) unapplied_.remove(std::get<PeerMessage>(event).peer, *counted);
    if (const auto* connected = std::get_if<PeerConnected>(&event)) {
      connections_.admit(connected->hello.member.peer(), connection);
    }
    for (const Action& action : step(state_, event)) carry_out(action);
  }
  draining_ = false;
  finish_stop();
}

// ------------------------------------------------------------------------------ what is to be done

void RunServer::carry_out(const Action& action) {
  struct Visitor {
    RunServer& server;
    void operator()(const Send& a) const { server.carry_out(a); }
    void operator()(const SendAll& a) const { server.carry_out(a); }
    void operator()(const WriteRegister& a) const { server.carry_out(a); }
    void operator()(const Close& a) const {
      if (!server.connections_.admitted(a.peer)) return;
      server.store_.drop(a.peer);
      server.connections_.close(a.peer);
    }
    void operator()(const StartTimer& a) const { server.carry_out(a); }
    void operator()(const StopTimer& a) const { server.timers_.erase({a.kind, a.peer}); }
    void operator()(const Say& a) const { server.say(a.warning, a.text, a.origin); }
    void operator()(const Deposed& a) const { server.carry_out(a); }
    void operator()(const RunOver&) const {
      server.store_.clear();  // the keys of a run that is over would mislead the next
    }
  };
  std::visit(Visitor{*this}, action);
}

void RunServer::carry_out(const Send& action) {
  if (!connections_.admitted(action.peer)) return;
  if (const auto* welcome = std::get_if<Welcome>(&action.message)) {
    Welcome filled = *welcome;
    filled.heartbeat_ms = options_.heartbeat_ms;
    filled.silence_ms = options_.silence_ms;
    filled.package = master_.package;
    return connections_.send(action.peer, filled);
  }
  if (const auto with_mark = marks_.marked(action.message)) {
    return connections_.send(action.peer, *with_mark);
  }
  connections_.send(action.peer, action.message);
}

void RunServer::carry_out(const SendAll& action) {
  std::vector<PeerId> to;
  for (const PeerId p : action.peers) {
    if (connections_.admitted(p)) to.push_back(p);
  }
  if (const auto with_mark = marks_.marked(action.message))
    return connections_.send(to, *with_mark);
  connections_.send(to, action.message);
}

void RunServer::carry_out(const StartTimer& action) {
  const auto duration_ms = [&] {
    switch (action.kind) {
      case TimerKind::patience:
        return options_.patience_ms;
      case TimerKind::founding:
        return options_.founding_delay_ms;
      case TimerKind::refound:
        return refound_ms(state_);
      case TimerKind::absence:
        break;
    }
    return options_.absence_ms;
  }();
  timers_[{action.kind, action.peer}] = clock_.timer(
      duration_ms, 0, [this, kind = action.kind, peer = action.peer] { timer_ended(kind, peer); });
}

void RunServer::timer_ended(TimerKind kind, PeerId peer) {
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

void RunServer::carry_out(const WriteRegister& action) {
  write_ = ++writes_;
  register_busy_ = true;
  if (!register_->shared()) before_write_ = action.from;  // else another master may change it
  write_deadline_ = clock_.timer(options_.register_deadline_ms, 0, [this] {
    answer_write(RegisterUnanswered{"the register did not answer within " +
                                    seconds(options_.register_deadline_ms)});
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

void RunServer::register_answered(std::uint64_t write, const Result<bool>& answer,
                                  const Register& value) {
  if (write != write_) return;  // too late: the write was given up
  if (!answer.ok()) {
    return answer_write(
        RegisterUnanswered{"the register could not be written: " + answer.error().text});
  }
  answer_write(RegisterWritten{value, answer.value()});
}

void RunServer::answer_write(Event event) {
  write_ = 0;
  write_deadline_.reset();
  events_.push_front({std::move(event), 0});
  drain();
}

void RunServer::carry_out(const Deposed& action) {
  say_of_register(LogLevel::warning, "this master is deposed: " + action.why +
                                         "; it closes its connections and takes over " +
                                         "again after reading the register anew");
  step_down(action.why);
  // If writes fail again and again, members come each time and are sent away.
  const std::uint64_t now = clock_.now_ms();
  const bool soon = deposed_ms_ > 0 && now - deposed_ms_ < kTakeOverCalmMs;
  deposed_ms_ = now;
  take_over_again_ms_ =
      soon ? std::min(2 * take_over_again_ms_, kTakeOverAgainMsMax) : kTakeOverAgainMs;
  take_over_in(take_over_again_ms_);
}

/// Forgets the state of the run. The peers are told why before their connections close.
void RunServer::step_down(const std::string& why) {
  connections_.send_all(Hold{"the master steps down: " + why});
  in_charge_ = false;
  idle_why_ = why;
  write_ = 0;
  write_deadline_.reset();
  events_.clear();
  unapplied_ = Unapplied();
  timers_.clear();
  store_.close();
  connections_.close_all();
  const Config config = state_.config;  // without the flags that have been answered
  state_ = State{};
  state_.config = config;
}

void RunServer::take_over_in(std::uint64_t delay_ms) {
  take_over_timer_ = clock_.timer(delay_ms, 0, [this] { take_over(); });
}

/// A register that fails for hours has a line of each kind in a minute.
void RunServer::say_of_register(LogLevel level, const std::string& text) {
  if (const auto more = register_lines_.admit("", text, clock_.now_ms())) {
    log_line(level, text + *more);
  }
}

void RunServer::take_over() {
  take_over_timer_.reset();
  if (in_charge_ || stopping_) return;
  if (register_->shared() && !has_lease_) return;  // called again when it has the lease
  if (register_busy_) {
    say_of_register(LogLevel::warning,
                    "the register still does not answer; it is read when it does");
    return take_over_in(kTakeOverAgainMs);
  }
  register_busy_ = true;
  const auto held = std::make_shared<std::optional<Result<Register>>>();
  network_.in_background([store = register_, held] { held->emplace(store->read()); },
                         [this, alive = std::weak_ptr(alive_), held] {
                           if (alive.expired()) return;
                           register_busy_ = false;
                           if (!(*held)->ok()) {
                             idle_why_ = "the register could not be read: " + (*held)->error().text;
                             say_of_register(LogLevel::error, idle_why_);
                             return take_over_in(kTakeOverAgainMs);
                           }
                           if (in_charge_ || stopping_ || (register_->shared() && !has_lease_))
                             return;
                           const std::string why = lockout_of((*held)->value());
                           if (!why.empty()) return stand_back(why);
                           take_charge(std::move(*held)->value());
                         });
}

/// Leaves the run to another master, or to none: under this one it would lose all its members.
void RunServer::stand_back(const std::string& why) {
  lockout_ = why;
  idle_why_ = why;
  say_of_register(LogLevel::error, "this master does not take the run over: " + why);
  if (!register_->shared()) return take_over_in(kTakeOverAgainMsMax);
  if (lease_busy_ || !std::exchange(has_lease_, false)) return;
  lease_busy_ = true;
  network_.in_background([store = register_] { store->release(); },
                         [this, alive = std::weak_ptr(alive_)] {
                           if (!alive.expired()) lease_busy_ = false;
                         });
}

// ------------------------------------------------------------------------------------- the lease

void RunServer::renew_lease() {
  if (lease_busy_ || stopping_) return;
  // The register that a master in charge has read must be the one that it writes.
  const bool looks = !has_lease_ && !register_busy_ &&
                     (looked_ms_ == 0 || clock_.now_ms() - looked_ms_ >= kLookAgainMs);
  if (looks) return look();
  if (has_lease_ || lockout_.empty()) hold_lease();
}

/// Before a master asks for the lease, and while it stands by, it looks whose the run is.
void RunServer::look() {
  lease_busy_ = true;
  const auto held = std::make_shared<std::optional<Result<Register>>>();
  network_.in_background([store = register_, held] { held->emplace(store->read()); },
                         [this, alive = std::weak_ptr(alive_), held] {
                           if (alive.expired()) return;
                           lease_busy_ = false;
                           looked_ms_ = clock_.now_ms();
                           lockout_ = (*held)->ok() ? lockout_of((*held)->value()) : "";
                           if (!lockout_.empty()) return stand_back(lockout_);
                           if (!stopping_) hold_lease();
                         });
}

void RunServer::hold_lease() {
  lease_busy_ = true;
  const auto answer = std::make_shared<std::optional<Result<bool>>>();
  const auto holder = std::make_shared<std::string>();
  network_.in_background(
      [store = register_, answer, holder] {
        answer->emplace(store->hold());
        *holder = store->holder();
      },
      [this, alive = std::weak_ptr(alive_), answer, holder] {
        if (alive.expired()) return;
        lease_busy_ = false;
        if (!lockout_.empty()) return stand_back(lockout_);  // seen meanwhile, by take_over
        lease_answered(**answer, *holder);
      });
}

void RunServer::lease_answered(const Result<bool>& answer, const std::string& holder) {
  const std::uint64_t now = clock_.now_ms();
  if (!answer.ok()) {
    // Commits need no register. The master in charge stays in charge until a standby that reaches
    // the register may have waited long enough to give the members up.
    const std::string why = "the lease could not be renewed: " + answer.error().text;
    if (!lease_failed_) log_line(LogLevel::warning, why);
    lease_failed_ = true;
    const bool lapsed = now - lease_renewed_ms_ > options_.lease_lapse_ms;
    if (!in_charge_) {
      if (lapsed) has_lease_ = false;  // another master may have it by now
      idle_why_ = why;
    } else if (lapsed) {
      log_line(LogLevel::warning, "this master has been without its lease for " +
                                      seconds(now - lease_renewed_ms_) + ": it stands by");
      has_lease_ = false;
      step_down(why);
    }
    return;
  }
  if (lease_failed_) log_line(LogLevel::info, "the register answers again");
  lease_failed_ = false;
  if (!answer.value()) {
    has_lease_ = false;
    const std::string why = holder + " holds the lease of this run";
    if (in_charge_) {
      log_line(LogLevel::warning,
               "this master is deposed: " + why + "; it closes its connections and stands by");
      step_down(why);
    } else if (idle_why_ != why) {
      log_line(LogLevel::info, "standing by: " + why);
      idle_why_ = why;
    }
    return;
  }
  lease_renewed_ms_ = now;
  if (std::exchange(has_lease_, true)) return;
  log_line(LogLevel::info, "this master holds the lease of the run");
  take_over();
}

// --------------------------------------------------------------------------------------- the store

void RunServer::room(PeerId peer) { store_.room(peer); }

/// On whose account this peer writes to the store: that of its token, or, without tokens, that of
/// its network.
std::string RunServer::owner_of(PeerId peer) const {
  const auto known = state_.peers.find(peer);
  if (known == state_.peers.end()) return "";
  const std::string& token = known->second.member.token;
  return token.empty() ? known->second.origin : token;
}

void RunServer::give_up(PeerId peer, const std::string& why) {
  log_line(LogLevel::warning,
           "gives up " + name(state_, peer) + " at " + connections_.remote(peer) + ": " + why);
  connections_.give_up(peer, why);
}

// -------------------------------------------------------------------------------- waiting, the end

void RunServer::say_waiting() {
  const std::string whom = whom_it_waits_for();
  const bool counts_down = !standstill(state_).empty() || !founders_apart(state_).empty();
  const std::string about = counts_down ? "a countdown" : in_charge_ ? whom : "the register";
  const std::uint64_t now = clock_.now_ms();
  if (about != said_waiting_) say_again_ms_ = 0;
  if (!whom.empty() && (say_again_ms_ == 0 || now - said_waiting_ms_ >= say_again_ms_)) {
    log_line(LogLevel::info, whom);
    tell_members(whom);
    said_waiting_ms_ = now;
    say_again_ms_ = say_again_ms_ == 0 ? options_.say_waiting_ms : 2 * say_again_ms_;
  }
  said_waiting_ = about;
  // The ranks of a replica are started together: ranks that are missing for longer are logged.
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
    if (!said_incomplete_.contains(text)) log_line(LogLevel::warning, text);
  }
  said_incomplete_ = std::move(said);
}

/// Members that have all come to a boundary see no reason why the master does not answer.
void RunServer::tell_members(const std::string& whom) {
  if (write_ != 0) return connections_.send_all(Hold{"the master is " + whom});
  for (const PeerId p : state_.unknown) connections_.send(p, Hold{whom});
}

std::string RunServer::whom_it_waits_for() const {
  if (!in_charge_) {
    if (!lockout_.empty()) return "";  // said when it was seen
    const bool standby = register_->shared() && !has_lease_ && !lease_failed_;
    return standby ? "" : "waiting for the register: " + idle_why_;
  }
  if (write_ != 0) return "waiting for the register to be written";
  return whom_a_run_waits_for(state_, [this](PeerId peer) { return connections_.remote(peer); });
}

void RunServer::stop(bool ends_wait, std::function<void()> done) {
  stopping_ = true;
  stopped_ = std::move(done);
  stop_by_ms_ = clock_.now_ms() + options_.register_deadline_ms + kStopMs;
  stop_timer_ = clock_.timer(10, 10, [this] { finish_stop(); });
  post(OperatorStops{ends_wait});
}

void RunServer::finish_stop() {
  if (!stopped_) return;
  if (clock_.now_ms() < stop_by_ms_) {
    if (in_charge_ && (write_ != 0 || !events_.empty())) return;
    if (!connections_.all_sent()) return;
    if (register_busy_ || lease_busy_) return;
  }
  stop_timer_.reset();
  waiting_timer_.reset();
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
