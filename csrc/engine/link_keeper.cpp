#include "engine/link_keeper.h"

#include <utility>

#include "base/limits.h"

namespace pccl {
namespace {

// A peer, or a relay, that ends a link again and again would keep an operation from its end for
// ever. A link that has held for kHeldMs begins anew.
constexpr unsigned kEndsMax = 8;
constexpr std::uint64_t kHeldMs = 60'000;

}  // namespace

LinkKeeper::Moves LinkKeeper::propose(const peer::Connect& proposal, std::uint64_t now_ms,
                                      std::uint64_t wait_ms) {
  epoch_ = proposal.epoch;
  until_ms_ = now_ms + wait_ms;
  // A link over a relay whose end no master was told of comes back as a part of the proposal.
  for (const Member& m : proposal.members) {
    if (via_.contains(m.peer())) redialing_.erase(m.peer());
  }
  via_ = proposal.via;
  connecting_.clear();
  proposed_.clear();
  Moves moves;
  for (const Member& m : proposal.members) {
    connecting_.insert(m.peer());
    proposed_[m.peer()] = m.handle;
    moves.dials.push_back(dial(m.handle, wait_ms));
  }
  if (proposal.members.empty()) moves.events.emplace_back(peer::LinksUp{epoch_});
  return moves;
}

LinkKeeper::Moves LinkKeeper::try_links(const peer::TryLinks& links, std::uint64_t wait_ms) {
  for (const PeerId peer : links.drop) stop_trying(peer);
  Moves moves;
  for (const Handle& handle : links.open) {
    tried_[handle.peer] = handle;
    trying_.insert(handle.peer);
    moves.dials.push_back({handle, std::nullopt, wait_ms});
  }
  return moves;
}

std::vector<PeerId> LinkKeeper::try_none() {
  std::vector<PeerId> peers;
  for (const auto& [peer, handle] : tried_) peers.push_back(peer);
  tried_.clear();
  trying_.clear();
  to_tell_.clear();
  return peers;
}

LinkKeeper::Moves LinkKeeper::up(PeerId peer) {
  Moves moves;
  if (connecting_.erase(peer) > 0 && connecting_.empty()) {
    moves.events.emplace_back(peer::LinksUp{epoch_});
  }
  if (redialing_.erase(peer) > 0) moves.events.emplace_back(peer::LinkBack{peer});
  if (trying_.erase(peer) > 0) note_tried({peer, ""}, moves);
  return moves;
}

LinkKeeper::Moves LinkKeeper::down(PeerId peer, const std::string& reason, Down how,
                                   const Now& now) {
  Moves moves;
  const bool refused = how == Down::refused;
  const bool connecting = connecting_.contains(peer);
  if (how == Down::lost && connecting && now.ms < until_ms_) {
    // The link of before: its loss is told after the proposal that follows from it.
    moves.dials.push_back(dial(proposed_.at(peer), until_ms_ - now.ms));
    return moves;
  }
  if (dialling(peer)) {
    redialing_.erase(peer);
    if (refused) moves.events.emplace_back(peer::LinkClosed{peer, true});
    moves.events.emplace_back(
        peer::LinkFailed{connecting || now.stopped ? epoch_ : now.epoch, peer, reason});
    return moves;
  }
  const auto handle = proposed_.find(peer);
  if (!now.member && handle == proposed_.end()) {
    const auto tried = tried_.find(peer);
    if (tried == tried_.end()) return moves;
    if (how == Down::lost) {
      trying_.insert(peer);
      moves.dials.push_back({tried->second, std::nullopt, kRedialMs});
    } else {
      stop_trying(peer);
      note_tried({peer, reason.empty() ? "the link did not come up" : reason}, moves);
    }
    return moves;
  }
  const bool too_often = ends_too_often(peer, now.ms);
  if (how == Down::spoiled || too_often) {
    const std::string often =
        too_often ? "; the link has ended " + std::to_string(kEndsMax) + " times in one operation"
                  : "";
    moves.events.emplace_back(
        peer::LinkFailed{now.stopped ? epoch_ : now.epoch, peer, reason + often});
    return moves;
  }
  moves.again = true;
  redialing_.insert(peer);
  if (handle != proposed_.end()) moves.dials.push_back(dial(handle->second, kRedialMs));
  // The end of a link over a relay is no evidence of that peer: the relay may be gone.
  if (!via_.contains(peer)) moves.events.emplace_back(peer::LinkClosed{peer, refused});
  return moves;
}

LinkKeeper::Moves LinkKeeper::tell_tried() {
  Moves moves;
  if (!to_tell_.empty()) moves.events.emplace_back(peer::LinksTried{std::exchange(to_tell_, {})});
  return moves;
}

void LinkKeeper::note_tried(TriedLink link, Moves& moves) {
  to_tell_.push_back(std::move(link));
  if (!trying_.empty()) return;
  moves.events.emplace_back(peer::LinksTried{std::exchange(to_tell_, {})});
}

bool LinkKeeper::ends_too_often(PeerId peer, std::uint64_t now_ms) {
  Ends& ends = ends_[peer];
  if (now_ms - ends.last_ms > kHeldMs) ends.count = 0;
  ends.last_ms = now_ms;
  if (++ends.count < kEndsMax) return false;
  ends_.erase(peer);
  return true;
}

LinkKeeper::Dial LinkKeeper::dial(const Handle& peer, std::uint64_t deadline_ms) const {
  const auto via = via_.find(peer.peer);
  return {peer, via == via_.end() ? std::nullopt : std::optional(via->second), deadline_ms};
}

}  // namespace pccl
