// The services that an engine or a master uses: time, links, channels, work that may block. In a
// process they are sockets and a Loop (TcpNetwork); tests/sim/engine has a network in memory with
// virtual time, in which whole engines and masters are simulated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "transport/channel.h"
#include "transport/clock.h"
#include "transport/process.h"
#include "transport/transport.h"
#include "trust/secrets.h"
#include "trust/token.h"

namespace pccl {

class Loop;

class Network {
 public:
  virtual ~Network() = default;
  [[nodiscard]] virtual Clock& clock() = 0;
  /// The links of this process; `events` outlives them.
  [[nodiscard]] virtual Result<std::unique_ptr<Links>> make_links(LinkEvents& events,
                                                                  const LinkOptions& options) = 0;
  /// As listen_channels and dial_channel (channel.h). `run`: the one that the caller means; empty:
  /// the only one of that master.
  [[nodiscard]] virtual Result<std::unique_ptr<ChannelListener>> listen(
      const std::string& host, std::uint16_t port,
      std::function<void(std::unique_ptr<Channel>)> accepted,
      std::shared_ptr<const Entrance> entrance) = 0;
  [[nodiscard]] virtual std::unique_ptr<Dial> dial(
      const std::string& address, const std::string& run, std::uint64_t timeout_ms,
      std::function<void(Result<std::unique_ptr<Channel>>)> done) = 0;
  /// As run_in_background (background.h).
  virtual void in_background(std::function<void()> work, std::function<void()> done) = 0;
  /// Of the threads on which `each` works; by default there is only the one that asks.
  [[nodiscard]] virtual std::size_t threads() const { return 1; }
  /// As Helpers::each (helpers.h).
  virtual void each(std::size_t count, const std::function<void(std::size_t)>& work) {
    for (std::size_t i = 0; i < count; ++i) work(i);
  }
  /// As this_process and has_ended (process.h); by default nothing is known of processes.
  [[nodiscard]] virtual ProcessName process() const { return {}; }
  [[nodiscard]] virtual bool ended(const ProcessName&) const { return false; }
};

/// Sockets on a loop, which outlives it, for a process of this key pair that holds these tokens
/// (null: none).
class TcpNetwork final : public Network {
 public:
  explicit TcpNetwork(Loop& loop, const KeyPair& identity = KeyPair::make(),
                      std::shared_ptr<const Tokens> tokens = nullptr)
      : loop_(loop), identity_(identity), tokens_(std::move(tokens)) {}
  [[nodiscard]] Clock& clock() override;
  [[nodiscard]] Result<std::unique_ptr<Links>> make_links(LinkEvents& events,
                                                          const LinkOptions& options) override;
  [[nodiscard]] Result<std::unique_ptr<ChannelListener>> listen(
      const std::string& host, std::uint16_t port,
      std::function<void(std::unique_ptr<Channel>)> accepted,
      std::shared_ptr<const Entrance> entrance) override;
  [[nodiscard]] std::unique_ptr<Dial> dial(
      const std::string& address, const std::string& run, std::uint64_t timeout_ms,
      std::function<void(Result<std::unique_ptr<Channel>>)> done) override;
  void in_background(std::function<void()> work, std::function<void()> done) override;
  [[nodiscard]] std::size_t threads() const override;
  void each(std::size_t count, const std::function<void(std::size_t)>& work) override;
  [[nodiscard]] ProcessName process() const override { return this_process(); }
  [[nodiscard]] bool ended(const ProcessName& other) const override { return has_ended(other); }

 private:
  Loop& loop_;
  KeyPair identity_;
  std::shared_ptr<const Tokens> tokens_;
};

}  // namespace pccl
