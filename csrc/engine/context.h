// The objects that the parts of an engine share: clock, links, memory, counters, and the numbers
// that name memory in the links. One per engine, owned by engine.cpp, passed by reference; engine's
// thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <variant>

#include "base/log.h"
#include "base/text.h"
#include "engine/buffer_pool.h"
#include "engine/kept.h"
#include "engine/last_events.h"
#include "engine/options.h"
#include "engine/request.h"
#include "engine/ticket.h"
#include "engine/view.h"
#include "engine/window.h"
#include "transport/network.h"

namespace pccl {

/// Is called about the segments that were sent, or are being placed, under one MemoryToken.
class SegmentOwner {
 public:
  virtual ~SegmentOwner() = default;
  virtual void segment_sent(MemoryToken token, PeerId peer, std::uint32_t index) = 0;
  virtual void segment_arrived(PeerId peer, const SegmentHeader& header, const Placement& at) = 0;
  /// As LinkEvents::segment_lost; of an owner that keeps what has not arrived yet.
  virtual void segment_lost(PeerId, const Placement&) {}
  /// Of an owner that places segments in parts.
  virtual void segment_part(PeerId, const SegmentHeader&, const Placement&, std::uint32_t,
                            std::span<const std::byte>) {}
};

template <typename Message>
[[nodiscard]] std::string_view name_of(const Message& message) {
  return std::visit([](const auto& m) { return std::decay_t<decltype(m)>::kName; }, message);
}

/// What a group asks of its engine, which has all groups of the process.
class GroupHost {
 public:
  virtual ~GroupHost() = default;
  /// Publishes a changed view to other threads.
  virtual void publish(GroupId group, GroupView view) = 0;
  /// Closes the link to this peer if no group of this engine needs the link any more. `in_order`:
  /// sends the queue first, which may hold data that other members of closed groups need.
  virtual void release_link(PeerId peer, bool in_order) = 0;
  /// Is this peer another rank of this process's replica in the run? The master evicts the two
  /// together.
  [[nodiscard]] virtual bool is_sibling(PeerId peer) const = 0;
  /// Does a group of this engine beside this one need the link to the peer?
  [[nodiscard]] virtual bool needed_beside(PeerId peer, GroupId group) const = 0;
};

struct EngineContext {
  Network& network;
  Clock& clock;
  Links& links;
  BufferPool& pool;
  const EngineOptions& options;
  EngineCounters& counters;
  GroupHost& host;

  /// Makes a token; until `retire` the `owner` is called about its segments.
  [[nodiscard]] MemoryToken token(SegmentOwner& owner) {
    do {
      ++last_token;  // 32 bits, because half a cookie holds one; tokens in use are skipped
    } while (last_token == 0 || owners.contains(last_token));
    owners.emplace(last_token, &owner);
    return last_token;
  }
  /// Cancels the token's segments in the links, and forgets the token. 0 is allowed.
  void retire(MemoryToken token) {
    if (token == 0) return;
    links.cancel(token);
    owners.erase(static_cast<std::uint32_t>(token));
  }
  [[nodiscard]] static std::uint64_t cookie(MemoryToken token, std::uint32_t index) {
    return (token << 32) | index;
  }

  /// Counts the data of a peer that cannot be used here yet; beyond the limit its link is given up.
  [[nodiscard]] std::optional<Kept> keep(PeerId peer, std::uint64_t bytes) {
    auto kept = kept_bytes.keep(peer, bytes);
    if (!kept) {
      breaks_rules(peer, "it ignores its window: more than " + std::to_string(kKeptBytesMax >> 20) +
                             " MiB of what it has sent waits here");
    }
    return kept;
  }
  /// A frame of this peer does not follow PROTOCOL.md: the link to the peer ends, and the groups
  /// that use the link are told why.
  void breaks_rules(PeerId peer, const std::string& how) {
    log_warning("the link to peer " + name(peer) + " is given up: " + how);
    links.give_up(peer, how);
  }

  /// Has the log no line about this loss of a peer yet? Several groups lose the same peer at once:
  /// by their own links, or by a message of another member that does not name the peer (`peer` 0).
  [[nodiscard]] bool is_news(PeerId peer) {
    const std::uint64_t now = clock.now_ms();
    const bool just_said = said_loss_ms > 0 && now - said_loss_ms <= kSameLossMs;
    const bool known = peer == PeerId{} || said_lost == PeerId{} || said_lost == peer;
    if (just_said && known) {
      if (said_lost == PeerId{}) said_lost = peer;
      return false;
    }
    said_loss_ms = std::max<std::uint64_t>(now, 1);
    said_lost = peer;
    return true;
  }

  /// From now on logs and errors name the peer as its handle does.
  void call(const Handle& handle) {
    if (names.size() >= kNamesMax) names.clear();
    names[handle.peer] = name_of(handle);
  }
  [[nodiscard]] std::string name(PeerId peer) const {
    const auto known = names.find(peer);
    return known == names.end() ? to_string(peer) : known->second;
  }

  void note(std::string_view what, PeerId peer = {}, GroupId group = {}, std::uint64_t number = 0) {
    events.note(clock.now_ms(), what, peer, group, number);
  }

  static constexpr std::uint64_t kSameLossMs = 2000;
  std::uint64_t said_loss_ms = 0;  // 0: none has been said
  PeerId said_lost{};
  bool said_fixed = false;  // the log has the line that a fixed group runs over pccl
  static constexpr std::size_t kNamesMax = 65536;
  LastEvents events{};
  std::unordered_map<PeerId, std::string> names{};
  std::uint32_t last_token = 0;
  std::unordered_map<std::uint32_t, SegmentOwner*> owners{};
  KeptBytes kept_bytes{};
  Windows windows{};
};

}  // namespace pccl
