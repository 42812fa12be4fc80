#include "transport/network.h"

#include <utility>

#include "transport/background.h"
#include "transport/helpers.h"
#include "transport/loop.h"

namespace pccl {

Clock& TcpNetwork::clock() { return loop_; }

Result<std::unique_ptr<Links>> TcpNetwork::make_links(LinkEvents& events,
                                                      const LinkOptions& options) {
  return make_tcp_links(loop_, events, identity_, options);
}

Result<std::unique_ptr<ChannelListener>> TcpNetwork::listen(
    const std::string& host, std::uint16_t port,
    std::function<void(std::unique_ptr<Channel>)> accepted,
    std::shared_ptr<const Entrance> entrance) {
  return listen_channels(loop_, host, port, std::move(accepted), {}, std::move(entrance));
}

std::unique_ptr<Dial> TcpNetwork::dial(const std::string& address, const std::string& run,
                                       std::uint64_t timeout_ms,
                                       std::function<void(Result<std::unique_ptr<Channel>>)> done) {
  return dial_channel(loop_, address, timeout_ms, std::move(done), {identity_, tokens_, run});
}

void TcpNetwork::in_background(std::function<void()> work, std::function<void()> done) {
  run_in_background(loop_, std::move(work), std::move(done));
}

std::size_t TcpNetwork::threads() const { return loop_.helpers().threads(); }

void TcpNetwork::each(std::size_t count, const std::function<void(std::size_t)>& work) {
  loop_.helpers().each(count, work);
}

}  // namespace pccl
