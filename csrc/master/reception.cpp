#include "master/reception.h"

#include <utility>
#include <variant>

#include "base/text.h"
#include "master/addresses.h"
#include "transport/address.h"
#include "transport/clock.h"
#include "transport/network.h"
#include "wire/codec.h"

namespace pccl::master {
namespace {

/// A channel that has come in by a token says its hello as the process that has proven itself
/// there.
bool is_own(const Caller& caller, const Handle& handle, const std::string& run) {
  if (caller.token.empty()) return true;
  return run == caller.run && handle.key == caller.key && handle.peer == peer_of(caller.key);
}

}  // namespace

Reception::Reception(Network& network, Find find, Tell tell)
    : network_(network), find_(std::move(find)), tell_(std::move(tell)) {}

Result<std::uint16_t> Reception::listen(const std::string& host, std::uint16_t port,
                                        std::shared_ptr<const Entrance> entrance) {
  auto listener = network_.listen(
      host, port, [this](std::unique_ptr<Channel> channel) { accepted(std::move(channel)); },
      std::move(entrance));
  if (!listener) return listener.error();
  listener_ = std::move(listener).value();
  return listener_->port();
}

void Reception::stop_listening() {
  listener_.reset();
  strangers_.clear();
}

void Reception::accepted(std::unique_ptr<Channel> channel) {
  const std::uint64_t stranger = next_++;
  const auto route = std::make_shared<Route>();
  // Both functions may end the connection, which destroys them too.
  channel->set_events({[this, stranger, route](std::span<const std::byte> payload) {
                         const Route to = *route;
                         if (to.to == nullptr) return first_message(stranger, payload);
                         to.to->arrived(to.number, payload);
                       },
                       [this, stranger, route](const std::string& reason) {
                         const Route to = *route;
                         if (to.to == nullptr) return closed(stranger, reason);
                         to.to->closed(to.number, reason);
                       }});
  strangers_[stranger] = {std::move(channel), route};
}

void Reception::first_message(std::uint64_t stranger, std::span<const std::byte> payload) {
  auto node = strangers_.extract(stranger);
  if (node.empty()) return;
  const std::unique_ptr<Channel>& channel = node.mapped().channel;
  const auto refused = [&](ErrorCode code, const std::string& text) {
    log_stranger(LogLevel::warning, *channel, "refused a connection from ", text);
    channel->send(encode(MasterToPeer{Refuse{Error{code, text}}}));
    channel->close();
  };
  auto message = decode_peer_to_master(payload);
  if (!message) return refused(ErrorCode::malformed, message.error().text);
  if (const auto* request = std::get_if<StatusRequest>(&message.value())) {
    channel->send(encode(answer(*request, *channel)));
    return channel->close();
  }
  auto* hello = std::get_if<Hello>(&message.value());
  if (hello == nullptr) return refused(ErrorCode::malformed, "the first message is not hello");
  if (hello->member.peer() == PeerId{}) {
    return refused(ErrorCode::malformed, "a hello without a peer");
  }
  const Caller caller = channel->caller();
  if (!is_own(caller, hello->member.handle, hello->run)) {
    return refused(ErrorCode::malformed, "a hello in the name of another process");
  }
  const auto run = find_(hello->run, caller);
  if (!run) return refused(run.error().code, run.error().text);
  Route& route = *node.mapped().route;
  route.number = run.value()->take(std::move(node.mapped().channel), std::move(*hello));
  route.to = run.value();
}

void Reception::closed(std::uint64_t stranger, const std::string& reason) {
  const auto node = strangers_.extract(stranger);
  if (node.empty()) return;
  log_stranger(LogLevel::info, *node.mapped().channel,
               "a connection that has sent no hello has closed, from ", reason);
}

void Reception::log_stranger(LogLevel level, const Channel& channel, const std::string& head,
                             const std::string& reason) {
  const std::string origin = origin_of(channel.caller().token, channel.remote());
  if (const auto more = lines_.admit(origin, head + reason, network_.clock().now_ms())) {
    log(level, head + channel.remote() + ": " + printable(reason) + *more);
  }
}

MasterToPeer Reception::answer(const StatusRequest& request, const Channel& channel) {
  const auto address = parse_address(channel.remote());
  const std::string host = address ? address.value().host : channel.remote();
  const Caller caller = channel.caller();
  if (!caller.token.empty() && caller.run != request.run) {
    return Refuse{Error{ErrorCode::malformed, "a status request for another run than its channel"}};
  }
  if (status_limit_.allows(host, network_.clock().now_ms())) return tell_(request, caller);
  return Refuse{
      Error{ErrorCode::refused, "this master answers " + std::to_string(kStatusPerSecondMax) +
                                    " status requests of one address in a second, and " +
                                    std::to_string(kStatusOfAllMax) + " of all: ask again"}};
}

}  // namespace pccl::master
