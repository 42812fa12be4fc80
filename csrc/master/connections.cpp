// See the header. When a peer connects again, its former connection is closed at once, so no
// message of that one arrives any more.
#include "master/connections.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "base/log.h"
#include "base/text.h"
#include "master/addresses.h"
#include "transport/address.h"
#include "transport/clock.h"
#include "wire/codec.h"

namespace pccl::master {
namespace {

/// Does the other side have the address of this machine by which it has come?
bool comes_from_here(const Channel& channel) {
  const auto remote = parse_address(channel.remote());
  return remote && remote.value().host == channel.local_host();
}

}  // namespace

Connections::Connections(pccl::Clock& clock, ConnectionEvents& events, std::uint64_t heartbeat_ms,
                         std::uint64_t silence_ms, std::string log_prefix)
    : clock_(clock),
      events_(events),
      heartbeat_ms_(heartbeat_ms),
      silence_ms_(silence_ms),
      tick_ms_(std::min(kTickMs, heartbeat_ms)),
      log_prefix_(std::move(log_prefix)) {}

Connections::~Connections() { close_all(); }

void Connections::begin() {
  ticked_ms_ = clock_.boot_ms();
  ticker_ = clock_.timer(tick_ms_, tick_ms_, [this] { tick(); });
}

void Connections::send(PeerId peer, const MasterToPeer& message) {
  const auto at = peers_.find(peer);
  if (at == peers_.end()) return;
  queue(connections_.at(at->second), encode(message));
}

void Connections::send(const std::vector<PeerId>& peers, const MasterToPeer& message) {
  const std::vector<std::byte> bytes = encode(message);
  for (const PeerId peer : peers) {
    const auto at = peers_.find(peer);
    if (at != peers_.end()) queue(connections_.at(at->second), bytes);
  }
}

void Connections::send_all(const MasterToPeer& message) {
  const std::vector<std::byte> bytes = encode(message);
  for (const auto& [peer, number] : peers_) queue(connections_.at(number), bytes);
}

void Connections::queue(Connection& to, std::span<const std::byte> bytes) {
  const std::size_t own = to.channel->queued_bytes();
  const std::size_t of_all_max = kUnreadBytesOfAllMax + connections_.size() * kAnswerBelowBytes;
  to.overflown = to.overflown || own + bytes.size() > kUnreadBytesMax ||
                 (own > kAnswerBelowBytes && *queued_bytes_ + bytes.size() > of_all_max);
  if (!to.overflown) to.channel->send(bytes);
}

void Connections::close(PeerId peer) {
  if (const auto at = peers_.find(peer); at != peers_.end()) end(at->second);
}

void Connections::admit(PeerId peer, std::uint64_t connection) {
  if (const auto at = connections_.find(connection); at != connections_.end()) {
    at->second.admitted = at->second.peer == peer;
  }
}

bool Connections::admitted(PeerId peer) const {
  const auto at = peers_.find(peer);
  return at != peers_.end() && connections_.at(at->second).admitted;
}

void Connections::close_all() {
  while (!connections_.empty()) end(connections_.begin()->first);
}

bool Connections::has_room(PeerId peer) const {
  const auto at = peers_.find(peer);
  if (at == peers_.end()) return true;  // messages to it are dropped
  return connections_.at(at->second).channel->queued_bytes() <= kAnswerBelowBytes;
}

bool Connections::all_sent() const {
  return std::all_of(connections_.begin(), connections_.end(),
                     [](const auto& entry) { return entry.second.channel->queued_bytes() == 0; });
}

std::map<PeerId, Seen> Connections::seen() const {
  const std::uint64_t now = clock_.now_ms();
  std::map<PeerId, Seen> out;
  for (const auto& [peer, number] : peers_) {
    const Connection& connection = connections_.at(number);
    out[peer] = {connection.channel->remote(), now - connection.heard_ms};
  }
  return out;
}

std::string Connections::remote(PeerId peer) const {
  const auto at = peers_.find(peer);
  return at == peers_.end() ? "" : connections_.at(at->second).channel->remote();
}

// ---------------------------------------------------------------------------------------- arriving

Connections::Number Connections::take(std::unique_ptr<Channel> channel, Hello hello) {
  look_at_clock();
  const PeerId peer = hello.member.peer();
  std::string name = name_of(hello.member.handle);
  if (!peers_.contains(peer) && peers_.size() >= kPeersMax) {
    refuse(*channel, name,
           {ErrorCode::refused,
            "this run has " + std::to_string(kPeersMax) + " peers and takes no more"});
    return 0;
  }
  const bool again = peers_.contains(peer);
  if (const Error error = events_.refusal(hello, again); error.failed()) {
    refuse(*channel, name, error);
    return 0;
  }
  if (again) end(peers_.at(peer));
  const Number number = next_++;
  channel->watch_queue(kAnswerBelowBytes, queued_bytes_, [this, number] {
    const auto at = connections_.find(number);
    if (at != connections_.end()) events_.room(at->second.peer);
  });
  channel->trust();
  hello.member.token = channel->caller().token;  // whatever the peer says
  // Another machine may have the same boot id, as copies of one snapshot have.
  const bool is_here = comes_from_here(*channel);
  if (!is_here) hello.member.process.machine = 0;
  const auto from = parse_address(channel->remote());
  hello.member.handle.addresses = may_be_dialled(std::move(hello.member.handle.addresses),
                                                 from ? from.value().host : "", is_here);
  Connection& made = connections_[number];
  made.channel = std::move(channel);
  made.peer = peer;
  made.name = std::move(name);
  made.heard_ms = clock_.now_ms();
  made.beat_ms = made.heard_ms;
  made.read_ms = made.heard_ms;
  peers_[peer] = number;
  events_.connected(std::move(hello), number);
  return number;
}

void Connections::arrived(Number number, std::span<const std::byte> payload) {
  look_at_clock();
  const auto at = connections_.find(number);
  if (at == connections_.end()) return;
  at->second.heard_ms = clock_.now_ms();
  auto message = decode_peer_to_master(payload);
  if (!message) return break_off(number, message.error().text);
  if (std::holds_alternative<Hello>(message.value())) {
    return break_off(number, "a second hello on one connection");
  }
  events_.message(at->second.peer, std::move(message).value(), payload.size());
}

void Connections::closed(Number number, const std::string& reason) {
  look_at_clock();
  const auto at = connections_.find(number);
  if (at == connections_.end()) return;
  const PeerId peer = at->second.peer;
  std::string remote = at->second.channel->remote();
  end(number);
  events_.disconnected(peer, std::move(remote), reason);
}

/// Tells the peer why the master ends this connection, and closes it.
void Connections::refuse(Channel& channel, const std::string& name, const Error& error) {
  const std::string origin = origin_of(channel.caller().token, channel.remote());
  if (const auto more = refusals_.admit(origin, name + error.text, clock_.now_ms())) {
    log_warning("refused " + log_prefix_ + "peer " + name + " from " + channel.remote() + ": " +
                printable(error.text) + *more);
  }
  channel.send(encode(MasterToPeer{Refuse{error}}));
  channel.close();
}

/// The peer has sent bytes that do not follow the protocol.
void Connections::break_off(Number number, const std::string& text) {
  Connection& connection = connections_.at(number);
  const PeerId peer = connection.peer;
  refuse(*connection.channel, connection.name, {ErrorCode::malformed, text});
  end(number);
  events_.gone(peer, "it has sent a message that does not follow the protocol: " + text);
}

void Connections::end(Number number) {
  const auto at = connections_.find(number);
  const auto newest = peers_.find(at->second.peer);
  if (newest != peers_.end() && newest->second == number) peers_.erase(newest);
  const std::unique_ptr<Channel> channel = std::move(at->second.channel);
  connections_.erase(at);
  channel->close();
}

void Connections::give_up(PeerId peer, const std::string& why) {
  if (const auto at = peers_.find(peer); at != peers_.end()) {
    connections_.erase(at->second);
    peers_.erase(at);
  }
  events_.gone(peer, why);
}

// ------------------------------------------------------------------------------------------- clock

void Connections::tick() {
  look_at_clock();
  const std::uint64_t now = clock_.now_ms();
  ticked_ms_ = clock_.boot_ms();
  std::vector<std::pair<PeerId, std::string>> lost;
  for (const auto& [peer, number] : peers_) {
    Connection& connection = connections_.at(number);
    const std::uint64_t received = connection.channel->received_bytes();
    if (received != std::exchange(connection.received_before, received) ||
        connection.channel->held_back()) {
      connection.heard_ms = now;
    }
    if (connection.channel->queued_bytes() <= kAnswerBelowBytes) {
      connection.read_ms = now;
    } else {
      const std::uint64_t acknowledged = connection.channel->acknowledged_bytes();
      if (acknowledged != std::exchange(connection.acknowledged_before, acknowledged)) {
        connection.read_ms = now;
      }
    }
    if (now - connection.heard_ms >= silence_ms_) {
      lost.emplace_back(peer, "silent for " + seconds(now - connection.heard_ms));
    } else if (connection.overflown || now - connection.read_ms >= silence_ms_) {
      lost.emplace_back(peer, "it does not read what the master sends");
    } else if (now - connection.beat_ms >= heartbeat_ms_) {
      connection.beat_ms = now;
      connection.channel->send(encode(MasterToPeer{Heartbeat{}}));
    }
  }
  for (const auto& [peer, why] : lost) give_up(peer, why);
}

void Connections::look_at_clock() {
  // Called before an arriving message is handled: after a stop of the process, sockets may be
  // served before the timer.
  const std::uint64_t now = clock_.boot_ms();
  if (now - ticked_ms_ <= tick_ms_ + silence_ms_ / 3) return;
  const std::uint64_t late_ms = now - ticked_ms_ - tick_ms_;
  ticked_ms_ = now;
  for (auto& [number, connection] : connections_) {
    connection.heard_ms = clock_.now_ms();
    connection.read_ms = connection.heard_ms;
  }
  log_warning(log_prefix_ + "this master was stopped for " + seconds(late_ms) +
              ": the silence of that time is its own, not the peers'");
  events_.woke(late_ms);
}

}  // namespace pccl::master
