// The gate of a listening port: accepts connections, reads their opening, and hands on the
// connections of the purpose that this port serves. Other connections are refused and logged
// (refusals.h). A sender that fills the places for unproven connections pushes out its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/handshake.h"
#include "transport/loop.h"
#include "transport/poll.h"
#include "transport/refusals.h"
#include "transport/talk.h"

namespace pccl {

/// On the loop's thread. `opened` is called from the loop with a connection whose opening was right
/// and has been answered. The gate counts the connection as unproven until it is taken from its
/// talk or has failed.
class Gate {
 public:
  using Opened = std::function<void(std::shared_ptr<Talk>)>;
  Gate(Loop& loop, std::vector<Socket> listening, Purpose purpose, Opened opened);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] const std::shared_ptr<Refusals>& refusals() const { return refusals_; }
  /// Stops accepting; connections that are not proven are dropped.
  void close();

 private:
  struct Listening {
    Socket socket;
    std::unique_ptr<Poll> poll;
  };
  using Networks = std::map<std::string, std::size_t>;
  struct Unproven {
    std::shared_ptr<Talk> talk;
    Networks::iterator network;  // of the sender
  };
  using Unprovens = std::list<Unproven>;
  void accept(int fd);
  void admit(Socket socket);
  void push_some_out();
  void opening_arrived(const std::shared_ptr<Talk>& talk, const std::string& remote_host,
                       std::span<const std::byte> bytes);
  void forget(Unprovens::iterator one);
  void pause();

  Loop& loop_;
  Purpose purpose_;
  Opened opened_;
  std::shared_ptr<Refusals> refusals_;  // talks that end later still say so
  std::uint16_t port_ = 0;
  std::vector<Listening> listening_;
  Unprovens unproven_;  // oldest first; none that is over
  Networks networks_;   // how many of `unproven_` each network has
  std::unique_ptr<Timer> paused_;
};

}  // namespace pccl
