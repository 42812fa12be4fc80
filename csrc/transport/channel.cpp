// The accepting side of channels: the opening by Gate and Talk, the entrance, then connections that
// wait for their owner's trust.
#include "transport/channel.h"

#include <deque>
#include <utility>

#include "transport/channel_connection.h"
#include "transport/gate.h"
#include "transport/listen.h"
#include "transport/receive_budget.h"
#include "transport/talk.h"

namespace pccl {
namespace {

constexpr std::size_t kUntrustedMax = 256;
constexpr std::uint64_t kChannelUserTimeoutMs = 30000;

class TcpListener : public ChannelListener {
 public:
  TcpListener(Loop& loop, std::vector<Socket> sockets,
              std::function<void(std::unique_ptr<Channel>)> accepted,
              std::shared_ptr<const Entrance> entrance, const ChannelLimits& limits)
      : loop_(loop),
        accepted_(std::move(accepted)),
        entrance_(std::move(entrance)),
        limits_(limits),
        budget_(std::make_shared<ReceiveBudget>(limits.large_bytes_max)),
        gate_(loop, std::move(sockets), Purpose::channel,
              [this](const std::shared_ptr<Talk>& talk) { opened(talk); }) {}

  [[nodiscard]] std::uint16_t port() const override { return gate_.port(); }

 private:
  void opened(const std::shared_ptr<Talk>& talk) {
    admit(loop_, talk, entrance_, [this, weak = std::weak_ptr(talk)](Caller caller) {
      if (const auto open = weak.lock(); open && !open->over()) admitted(*open, std::move(caller));
    });
  }
  void admitted(Talk& talk, Caller caller) {
    auto connection = std::make_shared<ChannelConnection>(loop_, talk.take(), std::move(caller),
                                                          false, limits_, budget_);
    std::erase_if(untrusted_, [](const auto& weak) {
      const auto held = weak.lock();
      return !held || !held->waits_for_trust();
    });
    if (untrusted_.size() >= kUntrustedMax) {
      if (const auto oldest = untrusted_.front().lock()) {
        oldest->fail("too many connections that wait to be accepted");
      }
      untrusted_.pop_front();
    }
    untrusted_.push_back(connection);
    accepted_(channel_over(std::move(connection)));
  }

  Loop& loop_;
  std::function<void(std::unique_ptr<Channel>)> accepted_;
  std::shared_ptr<const Entrance> entrance_;
  ChannelLimits limits_;
  std::shared_ptr<ReceiveBudget> budget_;
  std::deque<std::weak_ptr<ChannelConnection>> untrusted_;  // oldest first
  Gate gate_;
};

}  // namespace

Result<std::unique_ptr<ChannelListener>> listen_channels(
    Loop& loop, const std::string& host, std::uint16_t port,
    std::function<void(std::unique_ptr<Channel>)> accepted, const ChannelLimits& limits,
    std::shared_ptr<const Entrance> entrance) {
  auto sockets = listen_on(loop, host.empty() ? std::vector<std::string>{} : std::vector{host},
                           port, port, kChannelUserTimeoutMs);
  if (!sockets) return sockets.error();
  return std::unique_ptr<ChannelListener>(std::make_unique<TcpListener>(
      loop, std::move(sockets).value(), std::move(accepted), std::move(entrance), limits));
}

}  // namespace pccl
