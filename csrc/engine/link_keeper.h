// The links that an elastic group needs: those that the newest proposal asks for, those of members
// that are dialled again, and those that are tried for a later proposal. Pure: no links, no clock.
// The caller reports links that came up or went down; the functions return the links to dial and
// the events for the peer's core.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "membership/peer.h"
#include "transport/transport.h"

namespace pccl {

class LinkKeeper {
 public:
  struct Dial {
    Handle peer;
    std::optional<PeerId> via;  // the relay; none: a direct link
    std::uint64_t deadline_ms = 0;
  };
  /// The caller carries these out in this order.
  struct Moves {
    std::vector<Dial> dials;
    std::vector<peer::Event> events;
    bool again = false;  // the link was up before
  };

  /// A proposal, which replaces the one before. Its links have to come up within `wait_ms`.
  [[nodiscard]] Moves propose(const peer::Connect& proposal, std::uint64_t now_ms,
                              std::uint64_t wait_ms);
  /// Links that the master wants to be tried. One that has not come up within `wait_ms` is given
  /// up.
  [[nodiscard]] Moves try_links(const peer::TryLinks& links, std::uint64_t wait_ms);
  /// What is known of the links that are tried and has not been told. One message tells of many
  /// links: when none is open any more, or when the caller asks here, which it does at each tick.
  [[nodiscard]] Moves tell_tried();
  /// Forgets the links that are tried, and returns their peers.
  std::vector<PeerId> try_none();
  /// The link to this peer is tried, or kept for a later proposal.
  [[nodiscard]] bool tries(PeerId peer) const { return tried_.contains(peer); }
  [[nodiscard]] Moves up(PeerId peer);

  /// The facts about the group that `down` needs.
  struct Now {
    std::uint64_t ms = 0;
    EpochId epoch;         // the epoch that runs, or ran last
    bool stopped = false;  // that epoch does not run any more
    bool member = false;   // the other side is a member of that epoch
  };
  [[nodiscard]] Moves down(PeerId peer, const std::string& reason, Down how, const Now& now);
  /// The peer is no member any more: its link causes no events.
  void forget(PeerId peer) {
    redialing_.erase(peer);
    ends_.erase(peer);
  }
  /// An operation has succeeded: its links hold.
  void succeeded() { ends_.clear(); }
  /// The link to this peer is tried no more; the peer may be a member by now. What is not told yet
  /// of it says nothing about the next try.
  void stop_trying(PeerId peer) {
    tried_.erase(peer);
    trying_.erase(peer);
    std::erase_if(to_tell_, [peer](const TriedLink& link) { return link.peer == peer; });
  }

  [[nodiscard]] const std::map<PeerId, Handle>& proposed() const { return proposed_; }
  [[nodiscard]] bool dialling(PeerId peer) const {
    return connecting_.contains(peer) || redialing_.contains(peer);
  }

 private:
  /// How often a link that was up has ended since an operation succeeded.
  struct Ends {
    unsigned count = 0;
    std::uint64_t last_ms = 0;
  };

  [[nodiscard]] Dial dial(const Handle& peer, std::uint64_t deadline_ms) const;
  [[nodiscard]] bool ends_too_often(PeerId peer, std::uint64_t now_ms);
  void note_tried(TriedLink link, Moves& moves);

  EpochId epoch_;  // of the proposal
  std::uint64_t until_ms_ = 0;
  std::map<PeerId, Handle> proposed_;
  std::map<PeerId, PeerId> via_;  // which members of the proposal are reached over which relay
  std::set<PeerId> connecting_;   // of the proposal, not up yet
  std::set<PeerId> redialing_;    // were up
  std::map<PeerId, Ends> ends_;
  std::map<PeerId, Handle> tried_;
  std::set<PeerId> trying_;         // of `tried_`: neither up nor given up yet
  std::vector<TriedLink> to_tell_;  // to the master
};

}  // namespace pccl
