// Members for the sake of which all begin an epoch anew: a connection to the master, or a link of
// two members, was lost and is back, and messages or segments may have been lost with it. Nothing
// would ever be committed if one member lost one, or said so, again and again.
#include "membership/master_rules.h"

namespace pccl::master {
namespace {

// An engine gives up a link itself at its 8th end (engine/link_keeper.cpp), so it says seven times
// at most that a link is back.
constexpr unsigned kLinksMax = 8;
constexpr unsigned kConnectionsMax = 16;
constexpr std::uint64_t kHeldS = 60;  // what has held for so long begins anew

bool too_often(State& s, PeerId p, PeerId q, unsigned most) {
  Restarts& restarts = s.restarts[{p, q}];
  if (s.now_s >= restarts.last_s + kHeldS) restarts.count = 0;
  restarts.last_s = s.now_s;
  return ++restarts.count >= most;
}

}  // namespace

void link_is_back(State& s, PeerId p, const Relinked& m, Actions& out) {
  if (!too_often(s, p, m.peer, kLinksMax)) return;
  s.restarts.erase({p, m.peer});
  PeerId via;
  for (const Relay& relay : own(s) == nullptr ? std::vector<Relay>{} : own(s)->relays) {
    const bool its = (relay.a == p && relay.b == m.peer) || (relay.b == p && relay.a == m.peer);
    if (its) via = relay.via;
  }
  cannot_reach(s, p,
               Cannot{m.epoch, m.peer,
                      "the link of the two has ended " + std::to_string(kLinksMax) +
                          " times in one operation",
                      via},
               out);
}

bool connects_too_often(State& s, PeerId member) {
  return too_often(s, member, member, kConnectionsMax);
}

}  // namespace pccl::master
