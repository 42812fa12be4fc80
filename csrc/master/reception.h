// Where connections to a master come in: takes the first message of each, and hands the connection
// to the run that its Hello names. A status request is answered here and ends its connection.
//
// Strangers are untrusted: bad bytes are logged (base/line_limit.h) and end the connection of their
// sender. The transport limits how many connections may wait without a Hello, and for how long. A
// Hello touches nothing of any other run than its own: not even the connection of a peer of the
// same id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"
#include "base/line_limit.h"
#include "base/log.h"
#include "master/connections.h"
#include "master/status_limit.h"
#include "transport/channel.h"
#include "wire/messages.h"

namespace pccl {
class Network;
}

namespace pccl::master {

/// All calls on the loop's thread. What `find` returns outlives the object.
class Reception {
 public:
  /// The connections of a run; an error says why a peer that names it is refused. Empty: no name.
  /// The caller has come in by its token: does the token open this run?
  using Find = std::function<Result<Connections*>(const std::string& run, const Caller& caller)>;
  using Tell = std::function<MasterToPeer(const StatusRequest& request, const Caller& caller)>;

  Reception(Network& network, Find find, Tell tell);

  /// Listens on host:port (0: any). Returns the port. `entrance`: null where anybody may enter.
  [[nodiscard]] Result<std::uint16_t> listen(const std::string& host, std::uint16_t port,
                                             std::shared_ptr<const Entrance> entrance);
  /// Accepts no connections any more; those without a Hello are closed.
  void stop_listening();

 private:
  /// Where the messages of a connection go, since its Hello.
  struct Route {
    Connections* to = nullptr;
    Connections::Number number = 0;
  };
  struct Stranger {
    std::unique_ptr<Channel> channel;
    std::shared_ptr<Route> route;
  };

  void accepted(std::unique_ptr<Channel> channel);
  void log_stranger(LogLevel level, const Channel& channel, const std::string& head,
                    const std::string& reason);
  void first_message(std::uint64_t stranger, std::span<const std::byte> payload);
  void closed(std::uint64_t stranger, const std::string& reason);
  [[nodiscard]] MasterToPeer answer(const StatusRequest& request, const Channel& channel);

  Network& network_;
  const Find find_;
  const Tell tell_;
  std::unique_ptr<ChannelListener> listener_;
  std::map<std::uint64_t, Stranger> strangers_;
  std::uint64_t next_ = 0;
  StatusLimit status_limit_;
  LineLimit lines_;
};

}  // namespace pccl::master
