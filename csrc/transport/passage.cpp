#include "transport/passage.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <new>
#include <ranges>

#include "base/limits.h"
#include "transport/last_word.h"

namespace pccl {
namespace {

constexpr std::size_t kPassingMax = 4 * kRelayWindowBytes;  // from one to another; more is no order
// Messages from one to another that wait here. They have no window: a sound sender has some hundred
// bytes of them for each operation, and its receiver reads.
constexpr std::size_t kMessagesMax = 2 * kPassingMax;
constexpr std::size_t kMessagesFew = 1U << 20;  // wait for a receiver that reads

/// What a map of (from, to) holds of one sender.
template <typename Map>
auto of_sender(const Map& map, PeerId from) {
  constexpr PeerId kLast{std::numeric_limits<std::uint64_t>::max()};
  return std::ranges::subrange(map.lower_bound({from, PeerId{}}), map.upper_bound({from, kLast}));
}

}  // namespace

void Passage::message(PeerId from, const RelayMessage& message,
                      std::span<const std::byte> payload) {
  if (message.from != from || message.kind == RelayKind::credit || message.kind == RelayKind::cut) {
    return links_.give_up(from, "it relays a message of another sender");
  }
  if (links_.is_up(message.to)) {
    const Pair route(from, message.to);
    if (message.kind == RelayKind::open) routes_.try_emplace(route, 0);
    if (const auto open = routes_.find(route); open != routes_.end()) ++open->second;
    if (links_.queued_message_bytes(message.to) <= kMessagesFew) waiting_.erase(message.to);
    std::size_t& waiting = waiting_[message.to][from];
    if (waiting > kMessagesMax) return;  // they have been told
    waiting += payload.size() + kKeptMessageBytes;
    if (waiting > kMessagesMax) {
      const std::string why = "messages over the peer in between are not read by their receiver";
      routes_.erase(route);
      routes_.erase({message.to, from});
      cut(message.to, from, why);  // before it misses one
      return cut(from, message.to, why);
    }
    links_.send_relay(message.to, {payload.begin(), payload.end()});
    return;
  }
  if (message.kind == RelayKind::open) return;  // the peer repeats it
  cut(from, message.to, "the peer in between has no link to it");
}

/// Tells `from` that its relayed link to `to` has ended.
void Passage::cut(PeerId from, PeerId to, std::string_view why) {
  links_.send_relay(from, encode_relay({RelayKind::cut, to, from, 0, 0, as_span(why)}));
}

std::size_t Passage::waits_for(PeerId peer) const {
  std::size_t bytes = 0;
  const auto waiting = waiting_.find(peer);
  if (waiting == waiting_.end()) return bytes;
  for (const auto& [from, of_one] : waiting->second) bytes += of_one;
  return bytes;
}

Placement Passage::take_in(PeerId from, const SegmentHeader& header) {
  const Route& route = header.route;
  if (route.from != from) {
    links_.give_up(from, "it relays a message of another sender");
    return {};
  }
  if (!links_.is_up(route.to)) return {};
  const Pair between(from, route.to);
  const auto held = held_bytes_.find(between);
  if (held != held_bytes_.end() && held->second > kPassingMax) {
    links_.give_up(from, "it sends more over this peer than it has credit for");
    return {};
  }
  std::size_t held_of_one = 0;  // to all receivers
  for (const auto& [pair, bytes] : of_sender(held_bytes_, from)) held_of_one += bytes;
  const auto routes = [&] {
    return static_cast<std::size_t>(std::ranges::distance(of_sender(routes_, from)));
  };
  if (held_of_one >= of_one_max_ && held_of_one >= routes() * kRelayWindowBytes) {
    links_.give_up(from, "it sends more over this peer than it has credit for");
    return {};
  }
  std::vector<std::byte> buffer;
  try {
    buffer = buffers_.take(header.bytes);
  } catch (const std::bad_alloc&) {
    links_.give_up(from, no_memory_for("what it sends over this peer"));
    return {};
  }
  held_bytes_[between] += relay_cost(header.bytes);
  const MemoryToken token = kMark | ++tokens_;
  Passing& passing = passing_[token];
  passing = {between, std::move(buffer), relay_cost(header.bytes), false};
  return {passing.buffer.data(), token, 0};
}

void Passage::arrived(const SegmentHeader& header, MemoryToken token) {
  const auto found = passing_.find(token);
  if (found == passing_.end()) return;
  Passing& passing = found->second;
  passing.whole = true;
  bytes_ += header.bytes;
  if (!links_.is_up(passing.between.second)) return over(token, false);
  links_.send_segment(passing.between.second, header, passing.buffer.data(), token, 0);
}

void Passage::over(MemoryToken token, bool credit) {
  const auto found = passing_.find(token);
  if (found == passing_.end()) return;
  Passing& passing = found->second;
  const auto [from, to] = passing.between;
  const std::size_t bytes = passing.cost;
  if (const auto route = routes_.find(passing.between); route != routes_.end()) ++route->second;
  if (credit) links_.send_relay(from, encode_relay({RelayKind::credit, to, from, 0, bytes, {}}));
  const auto held = held_bytes_.find(passing.between);
  held->second -= bytes;
  if (held->second == 0) held_bytes_.erase(held);
  buffers_.give_back(std::move(passing.buffer));
  passing_.erase(found);
}

bool Passage::serves(PeerId peer) const {
  const auto of_peer = [peer](const Pair& pair) {
    return pair.first == peer || pair.second == peer;
  };
  return std::any_of(routes_.begin(), routes_.end(),
                     [&](const auto& route) { return of_peer(route.first); }) ||
         std::any_of(passing_.begin(), passing_.end(),
                     [&](const auto& passing) { return of_peer(passing.second.between); });
}

std::uint64_t Passage::moved(PeerId peer) const {
  std::uint64_t moved = 0;
  for (const auto& [route, count] : routes_) {
    if (route.first == peer || route.second == peer) moved += count;
  }
  return moved;
}

void Passage::unlink(PeerId peer) {
  waiting_.erase(peer);
  const std::string why = "the peer in between has lost its link to it";
  std::erase_if(routes_, [&](const auto& entry) {
    const Pair& route = entry.first;
    if (route.second == peer) cut(route.first, peer, why);
    return route.first == peer || route.second == peer;
  });
  std::vector<MemoryToken> ended;
  for (const auto& [token, passing] : passing_) {
    // A segment that has come whole is still sent on when its sender has gone.
    const auto& [from, to] = passing.between;
    if (to == peer || (from == peer && !passing.whole)) ended.push_back(token);
  }
  for (const MemoryToken token : ended) {
    links_.cancel(token);
    over(token, passing_.at(token).between.second == peer);
  }
}

}  // namespace pccl
