// See members.h.
#include "membership/members.h"

#include <map>
#include <utility>

#include "base/text.h"

namespace pccl {
namespace {

constexpr std::size_t kNamesShown = 8;    // of the ranks of a replica
constexpr std::size_t kReasonsShown = 2;  // why they are lost

/// The text for several ranks of one replica to which the same has happened.
std::string text_of_replica(const std::vector<Member>& members,
                            const std::vector<const Change*>& ranks) {
  const Member& first = *ranks.front()->member;
  std::string names;
  std::map<std::string, std::string> reasons;  // reason -> ranks
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Member& m = *ranks[i]->member;
    if (i < kNamesShown) add_to_list(names, name_of(m.handle));
    if (ranks[i]->reason.empty()) continue;
    add_to_list(reasons[ranks[i]->reason], std::to_string(m.place.rank));
  }
  if (ranks.size() > kNamesShown) {
    names += " and " + std::to_string(ranks.size() - kNamesShown) + " more";
  }
  std::string text = "rank " + std::to_string(rank_of(members, first.peer())) + " (replica " +
                     printable(first.place.replica) + ": " + names + ") " + ranks.front()->what;
  std::string why;
  std::size_t shown = 0;
  for (const auto& [reason, whose] : reasons) {
    if (++shown > kReasonsShown) break;
    const bool several = whose.find(',') != std::string::npos;
    add_to_list(why, "its rank" + std::string(several ? "s " : " ") + whose + ": " + reason, "; ");
  }
  if (reasons.size() > kReasonsShown) why += "; and others";
  return why.empty() ? text : text + ": " + why;
}

}  // namespace

void add(OpSet& set, OpKey key) {
  if (contains(set, key)) return;
  std::vector<OpKey>& also = set.also;
  if (key.step > set.below.step) {
    set.below = OpKey{key.step, 0};
    std::erase_if(also, [&set](OpKey other) { return other < set.below; });
  }
  also.insert(std::lower_bound(also.begin(), also.end(), key), key);
  auto joins = also.begin();
  for (; joins != also.end() && *joins == set.below; ++joins) ++set.below.index;
  also.erase(also.begin(), joins);
  // So many are never in flight at a sound member, so the oldest one is not open any more.
  if (also.size() > kReportOpsMax) also.erase(also.begin());
}

std::vector<PeerId> ring_of(const Epoch& epoch, std::uint32_t group) {
  std::vector<PeerId> ring;
  std::vector<bool> named(epoch.members.size(), false);
  const auto name = [&](std::size_t place) {
    if (place >= named.size() || named[place]) return;
    named[place] = true;
    const Member& m = epoch.members[place];
    if (m.place.rank == group) ring.push_back(m.peer());
  };
  for (const std::uint32_t place : epoch.ring) name(place);
  for (std::size_t place = 0; place < named.size(); ++place) name(place);
  return ring;
}

std::uint32_t rank_of(const std::vector<Member>& members, PeerId peer) {
  const auto self = std::find_if(members.begin(), members.end(),
                                 [&](const Member& m) { return m.peer() == peer; });
  if (self == members.end()) return static_cast<std::uint32_t>(members.size());
  return static_cast<std::uint32_t>(std::count_if(
      members.begin(), self, [&](const Member& m) { return m.place.rank == self->place.rank; }));
}

bool are_mates(const std::vector<Member>& members, PeerId p, PeerId q) {
  const auto find = [&](PeerId peer) {
    return std::find_if(members.begin(), members.end(),
                        [peer](const Member& m) { return m.peer() == peer; });
  };
  const auto a = find(p);
  const auto b = find(q);
  if (p == q || a == members.end() || b == members.end()) return false;
  return a->place.rank == b->place.rank;
}

std::string name_of(const std::vector<Member>& members, const Member& member) {
  std::string text = "rank " + std::to_string(rank_of(members, member.peer()));
  if (member.place.size > 1) text += " of peer group " + std::to_string(member.place.rank);
  text += " (" + name_of(member.handle);
  if (member.place.size > 1) text += ", replica " + printable(member.place.replica);
  return text + ")";
}

std::vector<std::string> texts_of(const std::vector<Member>& members,
                                  const std::vector<Change>& changes) {
  using Key = std::pair<std::pair<std::string, std::uint64_t>, std::string>;
  std::map<Key, std::vector<const Change*>> together;
  const auto key = [](const Change& c) {
    return Key{{c.member->place.replica, c.member->place.attempt}, c.what};
  };
  for (const Change& c : changes) together[key(c)].push_back(&c);
  std::vector<std::string> texts;
  for (const Change& c : changes) {
    const std::vector<const Change*>& ranks = together.at(key(c));
    if (ranks.front() != &c) continue;  // in the text of the first rank
    if (ranks.size() > 1) {
      texts.push_back(text_of_replica(members, ranks));
    } else {
      const std::string text = name_of(members, *c.member) + " " + c.what;
      texts.push_back(c.reason.empty() ? text : text + ": " + c.reason);
    }
  }
  return texts;
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) add_to_list(all, text, "; ");
  return cut_text(std::move(all));
}

std::string count_of(std::size_t number, const char* thing) {
  return std::to_string(number) + " " + thing + (number == 1 ? "" : "s");
}

std::string cut_text(std::string text) {
  return text.size() > kTextBytesMax ? cut_at_word(text, kTextBytesMax) : text;
}

}  // namespace pccl
