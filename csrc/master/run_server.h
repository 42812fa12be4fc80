// One run at a master: carries out the decisions of membership/master.h with connections, timers
// and the register, in order, and feeds back the events; also serves the key-value store of the
// run. Decides nothing about members, and knows of no other run. One loop, no thread of its own;
// writes of the register run in the background.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "master/connections.h"
#include "master/epoch_marks.h"
#include "master/options.h"
#include "master/register_file.h"
#include "master/store_desk.h"
#include "master/unapplied.h"
#include "membership/master.h"
#include "trust/secrets.h"

namespace pccl {
class Network;
}  // namespace pccl

namespace pccl::master {

// A master that was deposed, or could not read the register, tries again after this time; twice as
// late each time that it is deposed so soon (kTakeOverCalmMs) after the last time.
inline constexpr std::uint64_t kTakeOverAgainMs = 1000;
inline constexpr std::uint64_t kTakeOverAgainMsMax = 16000;
inline constexpr std::uint64_t kTakeOverCalmMs = 60000;
// A master that stands by looks so often whether it could be in charge.
inline constexpr std::uint64_t kLookAgainMs = 10000;
inline constexpr std::uint64_t kClockMs = 1000;
inline constexpr std::uint64_t kStopMs = 1000;  // at its end: to send the queue

/// All calls on the loop's thread. Destroy it before the loop.
class RunServer final : private ConnectionEvents {
 public:
  /// `log_prefix`: in front of each log line, where a master serves several runs.
  /// `peers_of_all_runs`: how many are connected to this process.
  RunServer(Network& network, const MasterOptions& master, ServedRun run, std::string log_prefix,
            std::function<std::size_t()> peers_of_all_runs);
  ~RunServer() override;

  /// Opens the register and takes over, or stands by. After an error, whose text says what to
  /// change, the object cannot be used.
  [[nodiscard]] Error start();
  /// The peers of this run come in here.
  [[nodiscard]] Connections& connections() { return connections_; }
  /// Ends the master of this run. `ends_wait`: the run too, if its members are lost and had the
  /// time to come back (OperatorStops). Calls `done` when the register is written and the queues
  /// are sent, or after their deadlines.
  void stop(bool ends_wait, std::function<void()> done);

  [[nodiscard]] const RunOptions& options() const { return options_; }
  [[nodiscard]] const State& state() const { return state_; }
  [[nodiscard]] Status status() const;
  /// The peers or the event that the run waits for; empty while it runs. Logged every
  /// say_waiting_ms.
  [[nodiscard]] std::string whom_it_waits_for() const;
  /// The tokens that open this run: who has come by another one is evicted. `gone`: revoked for all
  /// masters of the run.
  void tokens_are(std::vector<TokenMark> valid, std::vector<TokenMark> gone);
  /// The register and the epochs get marks of this secret; a hello that reports an epoch without
  /// its mark is refused, and a run that another secret has marked is not taken over. Before start.
  void use_key(const Secret& master);
  /// Does the register say that this token was revoked?
  [[nodiscard]] bool is_revoked(const TokenMark& token) const;

 private:
  [[nodiscard]] Error refusal(const Hello& hello, bool again) const override;
  [[nodiscard]] bool has_descriptors() const;
  void connected(Hello hello, std::uint64_t connection) override;
  void message(PeerId peer, PeerToMaster message, std::size_t bytes) override;
  void room(PeerId peer) override;
  void disconnected(PeerId peer, std::string remote, std::string why) override;
  void gone(PeerId peer, std::string why) override;
  void woke(std::uint64_t late_ms) override;

  void post(Event event, std::uint64_t connection = 0);
  void tell_time();
  void tick();
  void drain();
  void carry_out(const Action& action);
  void carry_out(const Send& action);
  void carry_out(const SendAll& action);
  void carry_out(const WriteRegister& action);
  void carry_out(const StartTimer& action);
  void carry_out(const Deposed& action);
  void timer_ended(TimerKind kind, PeerId peer);
  void register_answered(std::uint64_t write, const Result<bool>& answer, const Register& value);
  void answer_write(Event event);
  void step_down(const std::string& why);
  void renew_lease();
  void look();
  void hold_lease();
  void lease_answered(const Result<bool>& answer, const std::string& holder);
  [[nodiscard]] std::string lockout_of(const Register& held) const;
  void stand_back(const std::string& why);
  void take_over_in(std::uint64_t delay_ms);
  void say_of_register(LogLevel level, const std::string& text);
  void take_over();
  void take_charge(Register held);
  [[nodiscard]] std::string owner_of(PeerId peer) const;
  void give_up(PeerId peer, const std::string& why);
  void log_line(LogLevel level, const std::string& text) const { log(level, log_prefix_ + text); }
  void say(bool warning, const std::string& text, const std::string& origin);
  void say_waiting();
  void tell_members(const std::string& whom);
  void finish_stop();

  Network& network_;
  pccl::Clock& clock_;  // and not the event of that name
  const MasterOptions& master_;
  const RunOptions options_;
  const std::string log_prefix_;
  const std::function<std::size_t()> peers_of_all_runs_;
  std::shared_ptr<RegisterStore> register_;
  Connections connections_;
  State state_;
  std::optional<Register> before_write_;  // what the register has if its newest write has failed
  std::optional<TokensAre> tokens_;       // none: no token is asked for
  EpochMarks marks_;
  StoreDesk store_;
  bool in_charge_ = false;  // between a take-over and being deposed
  struct Queued {
    Event event;
    std::uint64_t connection = 0;             // PeerConnected: number of the connection
    std::optional<std::size_t> counted = {};  // PeerMessage: its bytes in unapplied_
  };
  std::deque<Queued> events_;  // not applied yet: the register is written meanwhile
  Unapplied unapplied_;        // the messages in events_ that came during a write
  bool draining_ = false;
  std::uint64_t write_ = 0;  // number of the write that has no answer yet; 0: none
  std::uint64_t writes_ = 0;
  bool register_busy_ = false;  // a call of the register runs in the background
  std::string idle_why_;        // why this master is not in charge
  std::string lockout_;         // why it must not be, as of the last look; empty: it may
  // For a register that several masters share.
  bool has_lease_ = false;
  bool lease_busy_ = false;    // a call for the lease runs in the background
  bool lease_failed_ = false;  // the last call for it had no answer
  std::uint64_t lease_renewed_ms_ = 0;
  std::uint64_t looked_ms_ = 0;  // when it last read, to stand by, whose the run is; 0: never
  std::map<std::pair<TimerKind, PeerId>, std::unique_ptr<Timer>> timers_;
  std::unique_ptr<Timer> write_deadline_;
  std::unique_ptr<Timer> take_over_timer_;
  std::uint64_t take_over_again_ms_ = kTakeOverAgainMs;
  std::uint64_t deposed_ms_ = 0;  // the last time; 0: never
  std::unique_ptr<Timer> waiting_timer_;
  std::map<PeerId, std::string> incomplete_;  // as of the last time
  std::set<std::string> said_incomplete_;
  // The last line about whom_it_waits_for: its text, its time, and when the next one is due.
  std::string said_waiting_;
  std::uint64_t said_waiting_ms_ = 0;
  std::uint64_t say_again_ms_ = 0;
  struct Said {
    std::uint64_t at_ms = 0;
    bool warning = false;
    std::string text;
  };
  LineLimit lines_;   // about processes that are no members
  LineLimit closed_;  // about their connections: no warnings
  LineLimit register_lines_;
  std::deque<Said> said_;  // for StatusRequest: the newest kStatusEventsMax
  std::uint64_t started_ms_ = 0;
  std::unique_ptr<Timer> clock_timer_;
  std::unique_ptr<Timer> lease_timer_;
  std::unique_ptr<Timer> stop_timer_;
  std::uint64_t stop_by_ms_ = 0;
  bool stopping_ = false;  // for good: other runs of this process may need longer
  std::function<void()> stopped_;
  /// Background work holds a weak reference to this, and so notices that the server is gone.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace pccl::master
