// The gate of a listening port: accepts connections, reads their opening, and hands on the
// connections of the purpose that this port serves. Other connections are refused and logged once
// for each sender and reason.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "transport/handshake.h"
#include "transport/loop.h"
#include "transport/poll.h"
#include "transport/talk.h"

namespace pccl {

/// Refusals in the log: at most one line for each remote host and reason in kRefusalLogMs, with the
/// number of refusals since the last line.
class RefusalLog {
 public:
  explicit RefusalLog(Loop& loop) : loop_(loop) {}
  void refused(const std::string& remote_host, const std::string& reason);

 private:
  struct Seen {
    std::uint64_t logged_ms = 0;
    std::uint64_t more = 0;
  };
  Loop& loop_;
  std::map<std::pair<std::string, std::string>, Seen> seen_;
};

/// On the loop's thread. `opened` is called from the loop with a connection whose opening was right
/// and has been answered. The gate counts the connection as unproven until it is taken from its
/// talk or has failed.
class Gate {
 public:
  using Opened = std::function<void(std::shared_ptr<Talk>)>;
  Gate(Loop& loop, std::vector<Socket> listening, Purpose purpose, std::uint64_t user_timeout_ms,
       Opened opened);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] const std::shared_ptr<RefusalLog>& refusals() const { return refusals_; }
  /// Stops accepting; connections that are not proven are dropped.
  void close();

 private:
  struct Listening {
    Socket socket;
    std::unique_ptr<Poll> poll;
  };
  void accept(int fd);
  void admit(Socket socket);
  void opening_arrived(const std::shared_ptr<Talk>& talk, const std::string& remote_host,
                       std::span<const std::byte> bytes);
  void forget_finished();
  void pause();

  Loop& loop_;
  Purpose purpose_;
  std::uint64_t user_timeout_ms_;
  Opened opened_;
  std::shared_ptr<RefusalLog> refusals_;  // talks that end later still say so
  std::uint16_t port_ = 0;
  std::vector<Listening> listening_;
  std::list<std::shared_ptr<Talk>> unproven_;  // oldest first
  std::unique_ptr<Timer> paused_;
};

}  // namespace pccl
