// The connection of a peer to its master: dials the masters of the list in turn, again and again
// with back-off, sends heartbeats, and notices a silent master. Knows nothing of membership: it
// passes messages up, and the peer's core decides. Also carries the calls of the key-value store.
// Engine's thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "engine/context.h"
#include "transport/channel.h"
#include "wire/messages.h"

namespace pccl {

class MasterClient {
 public:
  struct Events {
    std::function<void()> connected;
    /// `news`: the first loss since a master in charge has welcomed this peer. The log has a line.
    std::function<void(const std::string& reason, bool news)> lost;
    std::function<void(const MasterToPeer&)> message;  // all but Heartbeat and StoreReply
    std::function<Heartbeat()> heartbeat;
  };
  /// `run`: empty for the only one of those masters.
  MasterClient(EngineContext& context, std::vector<std::string> masters, std::string run,
               Events events);
  ~MasterClient();
  MasterClient(const MasterClient&) = delete;
  MasterClient& operator=(const MasterClient&) = delete;

  void dial();
  void send(const PeerToMaster& message);
  void store(StoreRequest request, std::shared_ptr<Ticket> ticket);
  /// A master in charge has welcomed this peer: takes its intervals. True: that ends a loss that
  /// was news. The log has a line.
  [[nodiscard]] bool welcomed(const Welcome& welcome);
  void tick(std::uint64_t elapsed_ms);
  /// Sends the queue, then closes, and dials no more; calls of the store end with `error`.
  void close(const Error& error);

  [[nodiscard]] bool connected() const { return channel_ != nullptr; }
  [[nodiscard]] const std::string& local_host() const { return local_host_; }
  /// Milliseconds without a master in charge.
  [[nodiscard]] std::uint64_t without_ms() const { return without_ms_; }
  /// The error for a caller that gives up: names every master of the list, with what was seen
  /// there.
  [[nodiscard]] Error nobody(const std::string& how_long) const;
  [[nodiscard]] std::string masters_text() const;
  /// Has an attempt failed?
  [[nodiscard]] bool has_failed() const;
  /// Has the master at each address of the list answered that this process cannot enter, as its
  /// last answer? Nothing changes that by itself.
  [[nodiscard]] bool is_kept_out() const;
  /// At each address of the list another program answers, or another run's master.
  [[nodiscard]] bool is_refused() const;
  /// Has the master of this connection answered as one that is in charge?
  [[nodiscard]] bool in_charge() const { return channel_ != nullptr && greeted_; }
  /// The master's last reason why this peer waits; empty: none since `goes_on`.
  [[nodiscard]] const std::string& reason() const { return told_; }
  void goes_on() { told_.clear(); }
  /// The same for the end of an error text.
  [[nodiscard]] std::string told() const { return told_.empty() ? "" : "; it says: " + told_; }

 private:
  struct StoreCall {
    StoreRequest request;
    std::shared_ptr<Ticket> ticket;
    std::uint64_t waited_ms = 0;
    bool sent = false;
  };
  void dialled(Result<std::unique_ptr<Channel>> result);
  void arrived(std::span<const std::byte> payload);
  void disconnected(const std::string& reason);
  void retry();
  void send_to_store(StoreCall& call);
  /// "ADDRESS: what was seen there" for each master of the list.
  [[nodiscard]] std::string seen_text() const;
  /// What was seen last at this master of the list; empty: nothing yet.
  [[nodiscard]] std::string seen_at(std::size_t i) const;

  EngineContext& context_;
  std::vector<std::string> masters_;
  const std::string run_;
  std::vector<bool> kept_out_;  // by the master at each address, at the last attempt
  std::vector<Error> seen_;     // of the last attempt at each master; the text does not name it
  Events events_;
  std::size_t next_ = 0;  // index of the master that is dialled next
  std::size_t at_ = 0;    // index of the master that is dialled or connected now
  std::unique_ptr<Dial> dial_;
  std::unique_ptr<Channel> channel_;
  std::unique_ptr<Timer> retry_timer_;
  std::uint64_t backoff_ms_ = kBackoffMsMin;
  std::uint64_t heartbeat_ms_ = 1000;
  std::uint64_t silence_ms_ = kMuteMs;  // until its Welcome says more
  std::uint64_t since_heartbeat_ms_ = 0;
  std::uint64_t since_message_ms_ = 0;  // since bytes of a message have come
  std::uint64_t received_before_ = 0;   // of this connection, at the tick before
  std::string local_host_;
  std::string said_;
  std::string told_;
  bool greeted_ = false;  // the master of this connection is in charge
  bool was_greeted_ = false;
  bool welcomed_ = false;
  bool said_lost_ = false;  // Events::lost had news, and no master has welcomed this peer since
  std::uint64_t without_ms_ = 0;
  std::uint64_t say_away_ms_ = 0;
  std::string stands_by_;  // the reason that a master gave for not being in charge
  Error closed_;           // the argument of close()
  std::uint64_t last_store_id_ = 0;
  std::map<std::uint64_t, StoreCall> store_calls_;
  Random random_;
};

}  // namespace pccl
