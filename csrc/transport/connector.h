// Connects to one of several addresses: resolves names off the loop's thread, tries the next
// address when one fails or is slow, and remembers what was seen at each, for the error text.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "transport/address.h"
#include "transport/loop.h"
#include "transport/poll.h"

namespace pccl {

/// Has a name that a peer has chosen been resolved to a service of this machine, or of its link?
[[nodiscard]] bool leads_astray(const std::string& name, const SocketAddress& found);

/// Used on the loop's thread. Callbacks come from the loop, never from inside a call; they may
/// destroy the connector. A connector has no deadline: its owner destroys it when the time is over.
class Connector {
 public:
  struct Events {
    /// Connected to `address`. If the connection is of no use, the owner calls `next`.
    std::function<void(Socket socket, const std::string& address)> connected;
    /// Every address has been tried in vain. `refused`: at each of them no process listens.
    std::function<void(const std::string& what, bool refused)> failed;
  };
  enum class From : std::uint8_t {
    user,
    peer  // names that lead astray are left out, and BBR is put off
  };
  Connector(Loop& loop, const std::vector<std::string>& addresses, From from, bool small_packets,
            std::uint64_t user_timeout_ms, Events events);
  ~Connector();
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  /// The connected address was of no use, for this reason: goes on with the others.
  void next(const std::string& address, const std::string& why);
  /// Connects to the same address once more, before all others, with small packets.
  void again_with_small_packets();
  /// Has the connection that was handed out last small packets?
  [[nodiscard]] bool small_packets() const { return handed_out_to_.small_packets; }
  /// "127.0.0.1:4711: connection refused; [::1]:4711: no answer yet".
  [[nodiscard]] std::string report() const;

 private:
  struct Resolving;
  struct Target {
    SocketAddress address;
    bool small_packets = false;
  };
  struct Attempt {
    Target target;
    Socket socket;
    std::unique_ptr<Poll> poll;
  };
  struct Outcome {
    std::string text;
    bool refused = false;
  };

  void resolve(const std::string& address);
  void found(const Resolving& name, const SocketAddress& address);
  void advance();
  void start_one();
  void advance_later();
  void finish(std::list<Attempt>::iterator attempt);
  void note(const std::string& address, const std::string& what, bool refused);

  Loop& loop_;
  From from_;
  bool small_packets_;
  std::uint64_t user_timeout_ms_;
  Events events_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::vector<Resolving*> resolving_;  // each owns itself until libuv has answered
  std::deque<Target> waiting_;
  Target handed_out_to_;
  std::list<Attempt> attempts_;
  std::vector<Outcome> outcomes_;
  std::unique_ptr<Timer> slow_;  // the newest attempt takes long: try the next beside it
  bool handed_out_ = false;      // the owner looks at a connection
};

}  // namespace pccl
