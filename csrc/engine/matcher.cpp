#include "engine/matcher.h"

#include <algorithm>
#include <utility>

namespace pccl {

void Matcher::advance(Sender& sender) {
  while (sender.beyond.erase(sender.known) > 0) ++sender.known;
}

Matcher::News Matcher::arrive(const SendName& name) {
  Sender& sender = senders_[name.peer];
  if (sender.withdrawn.erase(name.index) > 0) return News::withdrawn;
  if (name.index < sender.known || !sender.beyond.insert(name.index).second) return News::again;
  sender.sends[name.index] = {name.tag, ++order_, false};
  advance(sender);
  return News::fresh;
}

void Matcher::ready(const SendName& name) {
  Sender& sender = senders_[name.peer];
  const auto send = sender.sends.find(name.index);
  if (send != sender.sends.end()) send->second.ready = true;
}

bool Matcher::withdraw(const SendName& name) {
  Sender& sender = senders_[name.peer];
  const bool came = name.index < sender.known || sender.beyond.contains(name.index);
  if (came && sender.sends.erase(name.index) == 0) return false;
  if (!came) {
    sender.withdrawn.insert(name.index);
    sender.beyond.insert(name.index);
    advance(sender);
  }
  return true;
}

bool Matcher::takes(const Receive& receive, PeerId peer) {
  if (receive.from) return *receive.from == peer;
  return std::find(receive.among->begin(), receive.among->end(), peer) != receive.among->end();
}

/// The send of this tag that is next, if it can be taken.
Matcher::Sends::iterator Matcher::first(Sender& sender, std::uint64_t tag) {
  const auto end = sender.sends.lower_bound(sender.known);
  const auto next = std::find_if(sender.sends.begin(), end,
                                 [&](const auto& entry) { return entry.second.tag == tag; });
  return next != end && next->second.ready ? next : sender.sends.end();
}

/// Before the news of this sender no receive could take anything, so only its sends are looked at.
std::vector<Matcher::Pair> Matcher::settle(PeerId peer) {
  std::vector<Pair> pairs;
  Sender& sender = senders_[peer];
  if (sender.sends.empty()) return pairs;
  for (auto receive = receives_.begin(); receive != receives_.end();) {
    const auto send = takes(*receive, peer) ? first(sender, receive->tag) : sender.sends.end();
    if (send == sender.sends.end()) {
      ++receive;
      continue;
    }
    pairs.push_back({receive->id, {peer, receive->tag, send->first}});
    sender.sends.erase(send);
    receive = receives_.erase(receive);
  }
  return pairs;
}

std::optional<Matcher::Pair> Matcher::post(Receive receive) {
  Sender* from = nullptr;
  Sends::iterator best;
  PeerId peer;
  for (auto& [id, sender] : senders_) {
    if (!takes(receive, id)) continue;
    const auto send = first(sender, receive.tag);
    if (send == sender.sends.end()) continue;
    if (from != nullptr && best->second.order < send->second.order) continue;
    from = &sender;
    best = send;
    peer = id;
  }
  if (from == nullptr) {
    receives_.push_back(std::move(receive));
    return {};
  }
  const Pair pair{receive.id, {peer, receive.tag, best->first}};
  from->sends.erase(best);
  return pair;
}

bool Matcher::all_ready(PeerId peer, std::uint64_t end) const {
  const auto sender = senders_.find(peer);
  if (sender == senders_.end()) return end == 0;
  const Sends& sends = sender->second.sends;
  return sender->second.known >= end &&
         std::all_of(sends.begin(), sends.lower_bound(end),
                     [](const auto& entry) { return entry.second.ready; });
}

std::uint64_t Matcher::untaken(PeerId peer) const {
  const auto sender = senders_.find(peer);
  if (sender == senders_.end()) return 0;
  const Sends& sends = sender->second.sends;
  const std::uint64_t known = sender->second.known;
  return sends.empty() ? known : std::min(known, sends.begin()->first);
}

void Matcher::cancel(ReceiveId id) {
  receives_.remove_if([&](const Receive& receive) { return receive.id == id; });
}

}  // namespace pccl
