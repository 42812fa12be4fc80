#include "engine/matcher.h"

#include <algorithm>
#include <utility>

namespace pccl {

/// The numbers from `known` on that have come are known without a gap.
void Matcher::advance(Sender& sender) {
  for (; sender.beyond.erase(sender.known) > 0; ++sender.known) {
    const auto send = sender.sends.find(sender.known);
    if (send != sender.sends.end()) sender.news.insert(send->second.tag);
  }
}

void Matcher::erase(Sender& sender, Sends::iterator send) {
  const auto numbers = sender.numbers.find(send->second.tag);
  numbers->second.erase(send->first);
  if (numbers->second.empty()) sender.numbers.erase(numbers);
  sender.sends.erase(send);
}

Matcher::News Matcher::arrive(const SendName& name) {
  Sender& sender = senders_[name.peer];
  if (sender.withdrawn.erase(name.index) > 0) return News::withdrawn;
  if (name.index < sender.forgotten) return News::withdrawn;
  if (name.index < sender.known || !sender.beyond.insert(name.index).second) return News::again;
  sender.sends[name.index] = {name.tag, ++order_, false};
  sender.numbers[name.tag].insert(name.index);
  advance(sender);
  return News::fresh;
}

void Matcher::ready(const SendName& name) {
  Sender& sender = senders_[name.peer];
  const auto send = sender.sends.find(name.index);
  if (send == sender.sends.end()) return;
  send->second.ready = true;
  sender.news.insert(send->second.tag);
}

bool Matcher::withdraw(const SendName& name) {
  Sender& sender = senders_[name.peer];
  if (name.index < sender.known || sender.beyond.contains(name.index)) {  // it has come
    const auto send = sender.sends.find(name.index);
    if (send == sender.sends.end()) return false;
    sender.news.insert(send->second.tag);  // the one behind it
    erase(sender, send);
    return true;
  }
  sender.withdrawn.insert(name.index);
  sender.beyond.insert(name.index);
  advance(sender);
  return true;
}

std::optional<std::uint64_t> Matcher::forget_withdrawn(PeerId peer) {
  Sender& sender = senders_[peer];
  if (sender.withdrawn.size() <= kWithdrawnMax) return {};
  const std::uint64_t oldest = *sender.withdrawn.begin();
  if (oldest >= sender.known) return {};
  sender.withdrawn.erase(sender.withdrawn.begin());
  sender.forgotten = oldest + 1;
  return oldest;
}

bool Matcher::takes(const Receive& receive, PeerId peer) {
  if (receive.from) return *receive.from == peer;
  return std::find(receive.among->begin(), receive.among->end(), peer) != receive.among->end();
}

/// The send of this tag that is next, if it can be taken.
Matcher::Sends::iterator Matcher::first(Sender& sender, std::uint64_t tag) {
  const auto numbers = sender.numbers.find(tag);
  if (numbers == sender.numbers.end()) return sender.sends.end();
  const std::uint64_t next = *numbers->second.begin();
  const auto send = sender.sends.find(next);
  return next < sender.known && send->second.ready ? send : sender.sends.end();
}

/// The receive that was posted first of those that take this tag of this sender.
std::optional<Matcher::ReceiveId> Matcher::next_receive(PeerId peer, std::uint64_t tag) const {
  std::optional<ReceiveId> next;
  if (const auto own = waiting_.find({peer, tag}); own != waiting_.end()) {
    next = *own->second.begin();
  }
  if (const auto any = waiting_.find({{}, tag}); any != waiting_.end()) {
    for (const ReceiveId id : any->second) {
      if (next && *next < id) break;
      if (takes(receives_.at(id), peer)) return id;
    }
  }
  return next;
}

/// Before the news of this sender no receive could take anything, so only its sends are looked at,
/// and of these the tags of which there is news.
std::vector<Matcher::Pair> Matcher::settle(PeerId peer) {
  std::vector<Pair> pairs;
  Sender& sender = senders_[peer];
  for (const std::uint64_t tag : std::exchange(sender.news, {})) {
    for (auto send = first(sender, tag); send != sender.sends.end(); send = first(sender, tag)) {
      const auto receive = next_receive(peer, tag);
      if (!receive) break;
      pairs.push_back({*receive, {peer, tag, send->first}});
      erase(sender, send);
      cancel(*receive);
    }
  }
  std::sort(pairs.begin(), pairs.end(),
            [](const Pair& a, const Pair& b) { return a.receive < b.receive; });
  return pairs;
}

std::optional<Matcher::Pair> Matcher::post(Receive receive) {
  Sender* from = nullptr;
  Sends::iterator best;
  PeerId peer;
  const auto look = [&](PeerId id, Sender& sender) {
    const auto send = first(sender, receive.tag);
    if (send == sender.sends.end()) return;
    if (from != nullptr && best->second.order < send->second.order) return;
    from = &sender;
    best = send;
    peer = id;
  };
  if (receive.from) {
    if (const auto sender = senders_.find(*receive.from); sender != senders_.end()) {
      look(sender->first, sender->second);
    }
  } else {
    for (auto& [id, sender] : senders_) {
      if (takes(receive, id)) look(id, sender);
    }
  }
  if (from == nullptr) {
    waiting_[{receive.from, receive.tag}].insert(receive.id);
    const ReceiveId id = receive.id;
    receives_.emplace(id, std::move(receive));
    return {};
  }
  const Pair pair{receive.id, {peer, receive.tag, best->first}};
  erase(*from, best);
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
  const auto receive = receives_.find(id);
  if (receive == receives_.end()) return;
  const auto place = waiting_.find({receive->second.from, receive->second.tag});
  place->second.erase(id);
  if (place->second.empty()) waiting_.erase(place);
  receives_.erase(receive);
}

}  // namespace pccl
