// The links to newcomers are tried while the members train on. A newcomer of a running run is
// proposed only when each member of its peer group and the newcomer have both said that their link
// is up, or when the two are known not to reach each other (relays.cpp finds the third member). So
// a newcomer that does nothing, or half, stands at no boundary. A newcomer that no member helps to
// reach, or that does not answer in time, waits, and is tried again ever more rarely.
#include <algorithm>
#include <utility>

#include "base/text.h"
#include "membership/master_rules.h"

namespace pccl::master {
namespace {

constexpr std::uint64_t kTrialS = 10;           // without a word: longer than a peer dials
constexpr std::size_t kTrialsOfGroupMax = 128;  // in one peer group: each member keeps their links
constexpr std::size_t kFewMembers = 16;
constexpr std::uint64_t kAsksOfFew = 8;  // in a second; of more members: one
constexpr std::size_t kApartShown = 2;
constexpr std::size_t kApartBytesMax = 500;

bool waits_outside(const State& s, PeerId p) {
  const auto peer = s.peers.find(p);
  return peer != s.peers.end() && !peer->second.report.started && !is_own_member(s, p) &&
         !is_expelled(s, p);
}

std::uint32_t peer_group_of(const State& s, PeerId p) { return s.peers.at(p).member.place.rank; }

bool cannot_be_linked(const State& s, PeerId p, PeerId q) {
  return s.cannot.contains({p, q}) || s.cannot.contains({q, p});
}

/// Trials in the order in which they have begun.
std::vector<PeerId> trials_in_order(const State& s) {
  std::vector<PeerId> order;
  for (const auto& [p, trial] : s.trials) order.push_back(p);
  std::sort(order.begin(), order.end(),
            [&](PeerId a, PeerId b) { return s.trials.at(a).number < s.trials.at(b).number; });
  return order;
}

/// The connected members of the newcomer's peer group, and the newcomers of it that came before.
std::set<PeerId> mates_of(const State& s, PeerId newcomer) {
  std::set<PeerId> mates;
  const std::uint32_t group = peer_group_of(s, newcomer);
  if (const auto members = s.groups.find(group); members != s.groups.end()) {
    for (const PeerId m : members->second) {
      if (s.peers.contains(m) && !is_expelled(s, m)) mates.insert(m);
    }
  }
  const std::uint64_t number = s.trials.at(newcomer).number;
  for (const auto& [p, trial] : s.trials) {
    if (trial.number < number && peer_group_of(s, p) == group) mates.insert(p);
  }
  return mates;
}

void ask_to_open(State& s, PeerId at, const Handle& other) {
  s.links_to_ask[at].open.push_back(other);
}

/// The receiver drops first and opens then, so a link that was asked for just now is left out.
void ask_to_drop(State& s, PeerId at, PeerId other) {
  Try& links = s.links_to_ask[at];
  std::erase_if(links.open, [&](const Handle& handle) { return handle.peer == other; });
  if (std::find(links.drop.begin(), links.drop.end(), other) == links.drop.end()) {
    links.drop.push_back(other);
  }
}

/// Peers that are asked for the same get one message, which is encoded once.
void send_asked(State& s, Actions& out) {
  std::vector<std::pair<Try, std::vector<PeerId>>> messages;
  for (auto& asked : std::exchange(s.links_to_ask, {})) {
    if (!s.peers.contains(asked.first)) continue;
    const auto same = std::find_if(messages.begin(), messages.end(), [&](const auto& message) {
      return message.first == asked.second;
    });
    if (same != messages.end()) {
      same->second.push_back(asked.first);
    } else {
      messages.emplace_back(std::move(asked.second), std::vector<PeerId>{asked.first});
    }
  }
  for (auto& [links, to] : messages) send_all(s, to, std::move(links), out);
}

void forget_mate(Trial& trial, PeerId mate) {
  trial.mates.erase(mate);
  trial.unsaid.erase(mate);
  trial.silent.erase(mate);
}

/// Ends a trial. The mates, and the newcomer if it is here, give up their links.
void end_trial(State& s, PeerId p) {
  const Trial trial = std::move(s.trials.at(p));
  s.trials.erase(p);
  std::vector<PeerId> mates(trial.mates.begin(), trial.mates.end());
  for (auto& [q, later] : s.trials) {
    if (!later.mates.contains(p)) continue;
    forget_mate(later, p);
    mates.push_back(q);
  }
  for (const PeerId mate : mates) {
    ask_to_drop(s, p, mate);
    ask_to_drop(s, mate, p);
  }
}

/// The newcomer is not proposed, and its links are tried again later.
void give_up(State& s, PeerId p, const std::string& why, Actions& out) {
  const std::uint64_t wait_s = not_reached(s, p, why);
  const std::string text =
      cut_text(why + "; the newcomer waits, and its links are tried again in " +
               std::to_string(wait_s) + " s");
  out.push_back(Say{true, text});
  send(s, p, Hold{text}, out);
  end_trial(s, p);
  reaches_again(s, p);
}

/// Which peers and the newcomer do not reach each other, and why.
std::string apart_from(const State& s, PeerId p) {
  std::string text;
  std::size_t number = 0;
  for (const auto& pair : s.cannot) {
    if (pair.first != p && pair.second != p) continue;
    if (++number > kApartShown) continue;
    const PeerId other = pair.first == p ? pair.second : pair.first;
    const auto why = s.why_not.find(pair);
    const std::string reason =
        why == s.why_not.end() ? "" : printable(why->second.substr(0, kApartBytesMax));
    add_to_list(text, name(s, other) + (reason.empty() ? "" : " (" + reason + ")"), ", ");
  }
  if (number > kApartShown) {
    text += " and " + std::to_string(number - kApartShown) + " more";
  }
  const std::string newcomer = "newcomer " + name_of(s.peers.at(p).member.handle);
  if (number == 0) return "another rank of the replica of " + newcomer + " cannot reach a peer";
  return newcomer + " and " + text + " do not reach each other, also not over a third member";
}

bool may_be_tried(const State& s, PeerId p) {
  const auto held = s.unreachable.find(p);
  if (held != s.unreachable.end() && held->second.retry_s > s.now_s) return false;
  return !s.trials.contains(p) && must_wait_s(s, s.peers.at(p).member) == 0;
}

/// The trials of a peer group, by the origin of the newcomer, in the order in which they have
/// begun.
struct TrialsOfGroup {
  std::map<std::string, std::vector<PeerId>> by_origin;
  std::size_t number = 0;
};

/// Makes room for a newcomer of this origin: of the origin with most trials the newest goes.
bool make_room(State& s, TrialsOfGroup& trials, const std::string& origin) {
  auto& by_origin = trials.by_origin;
  if (trials.number < kTrialsOfGroupMax) return true;
  const auto most = std::max_element(
      by_origin.begin(), by_origin.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (by_origin[origin].size() + 1 >= most->second.size()) return false;
  end_trial(s, most->second.back());
  most->second.pop_back();
  --trials.number;
  return true;
}

void begin_trials(State& s) {
  std::vector<std::pair<std::uint64_t, PeerId>> waiting;
  for (const auto& [p, peer] : s.peers) {
    if (waits_outside(s, p) && may_be_tried(s, p)) waiting.emplace_back(peer.arrived, p);
  }
  if (waiting.empty()) return;
  std::sort(waiting.begin(), waiting.end());
  std::map<std::uint32_t, TrialsOfGroup> groups;
  const auto count = [&](PeerId p) {
    TrialsOfGroup& trials = groups[peer_group_of(s, p)];
    trials.by_origin[origin_name(s, p)].push_back(p);
    ++trials.number;
  };
  for (const PeerId p : trials_in_order(s)) count(p);
  for (const auto& [arrived, p] : waiting) {
    if (own(s)->members.size() + s.trials.size() >= s.config.max_peers) return;
    if (!make_room(s, groups[peer_group_of(s, p)], origin_name(s, p))) continue;
    s.trials[p].number = ++s.trials_begun;
    count(p);
  }
}

/// Asks for the links that the newcomer has not been asked for, and forgets those to peers that are
/// gone.
void ask_for_links(State& s, PeerId p) {
  Trial& trial = s.trials.at(p);
  const std::set<PeerId> mates = mates_of(s, p);
  bool asks = false;
  for (const PeerId gone : std::set<PeerId>(trial.mates)) {
    if (mates.contains(gone)) continue;
    forget_mate(trial, gone);
    ask_to_drop(s, p, gone);
    asks = true;
  }
  for (const PeerId mate : mates) {
    if (trial.mates.contains(mate) || cannot_be_linked(s, p, mate)) continue;
    trial.mates.insert(mate);
    trial.unsaid.insert(mate);
    trial.silent.insert(mate);
    ask_to_open(s, mate, s.peers.at(p).member.handle);
    ask_to_open(s, p, s.peers.at(mate).member.handle);
    asks = true;
  }
  if (asks) trial.waited_s = 0;
}

/// Ends the trials of newcomers that are gone, or are members.
void end_trials(State& s) {
  for (const PeerId p : trials_in_order(s)) {
    if (own(s) != nullptr && is_own_member(s, p)) {
      s.trials.erase(p);  // its links are those of the epoch now
    } else if (own(s) == nullptr || !waits_outside(s, p)) {
      end_trial(s, p);
    }
  }
}

}  // namespace

void try_links(State& s, Actions& out) {
  if (std::exchange(s.trials_changed, false)) {
    end_trials(s);
    s.trials_later = true;
  }
  if (!s.trials_later) return;
  const bool few = s.seats.size() <= kFewMembers;
  Pace pace = s.asks_for_links;
  if (!keeps_pace(pace, s.now_s, few ? kAsksOfFew : 1)) return;
  s.trials_later = false;
  if (own(s) != nullptr) {
    begin_trials(s);
    for (const PeerId p : trials_in_order(s)) ask_for_links(s, p);
  }
  if (s.links_to_ask.empty()) return;
  s.asks_for_links = pace;
  send_asked(s, out);
}

void forget_links(State& s, PeerId p) {
  s.trials_changed = true;
  s.trials.erase(p);
  s.links_to_ask.erase(p);
  for (auto& [q, trial] : s.trials) forget_mate(trial, p);
}

std::set<PeerId> tried(const State& s) {
  std::set<PeerId> out;
  for (const PeerId p : trials_in_order(s)) {
    const Trial& trial = s.trials.at(p);
    // No newcomer waits for one that may not be admitted itself.
    const auto waits_for = [&](PeerId q) { return !s.trials.contains(q) || out.contains(q); };
    if (std::any_of(trial.unsaid.begin(), trial.unsaid.end(), waits_for)) continue;
    if (std::any_of(trial.silent.begin(), trial.silent.end(), waits_for)) continue;
    out.insert(p);
  }
  return out;
}

void give_up_apart(State& s, Actions& out) {
  if (s.cannot.empty() || own(s) == nullptr) return;
  for (const PeerId p : excluded(s)) {
    if (s.trials.contains(p) && waits_outside(s, p)) give_up(s, p, apart_from(s, p), out);
  }
}

void hear_of_links(State& s, PeerId from, const Tried& m, Actions& out) {
  bool apart = false;
  std::set<PeerId> heard;
  for (const TriedLink& link : m.links) {
    for (const auto& [newcomer, mate] : {std::pair(from, link.peer), std::pair(link.peer, from)}) {
      const auto found = s.trials.find(newcomer);
      if (found == s.trials.end() || !found->second.mates.contains(mate)) continue;
      heard.insert(newcomer);
      Trial& trial = found->second;
      if (link.reason.empty()) {
        (from == newcomer ? trial.unsaid : trial.silent).erase(mate);
        break;
      }
      forget_mate(trial, mate);
      s.cannot.insert({newcomer, mate});
      s.why_not[{newcomer, mate}] = link.reason;
      ask_to_drop(s, link.peer, from);
      s.trials_changed = apart = true;
      break;
    }
  }
  if (apart) give_up_apart(s, out);
  const auto may_come = [&](PeerId p) { return heard.contains(p); };
  const std::set<PeerId> up = tried(s);
  if (apart || std::any_of(up.begin(), up.end(), may_come)) reconsider(s, out);
}

bool trials_time_out(State& s, std::uint64_t elapsed_s, Actions& out) {
  bool changed = false;
  for (const PeerId p : trials_in_order(s)) {
    const auto found = s.trials.find(p);
    if (found == s.trials.end()) continue;
    Trial& trial = found->second;
    if (trial.unsaid.empty() && trial.silent.empty()) continue;
    trial.waited_s += elapsed_s;
    // A member that connects again and again, and never answers, is asked anew each time.
    if (trial.unsaid.empty()) trial.silent_s += elapsed_s;
    const bool silent_long = trial.unsaid.empty() && trial.silent_s >= kTrialS;
    if (trial.waited_s < kTrialS && !silent_long) continue;
    changed = true;
    if (!trial.unsaid.empty()) {
      give_up(s, p,
              "newcomer " + name_of(s.peers.at(p).member.handle) + " has not said within " +
                  std::to_string(kTrialS) + " s whether it reaches " +
                  name(s, *trial.unsaid.begin()),
              out);
      continue;
    }
    // The newcomer has the link, and a link has two ends: the word of one is enough.
    trial.silent.clear();
  }
  return changed;
}

std::string why_tried(const State& s, PeerId p) {
  const auto held = s.unreachable.find(p);
  if (held != s.unreachable.end() && held->second.retry_s > s.now_s) {
    return held->second.why + "; tried again in " + std::to_string(held->second.retry_s - s.now_s) +
           " s";
  }
  const auto found = s.trials.find(p);
  if (found == s.trials.end()) {
    const bool room = own(s)->members.size() + s.trials.size() < s.config.max_peers;
    return room ? "waits until its links to the members can be tried"
                : "newcomers that came before take the room of the run";
  }
  if (tried(s).contains(p)) return "";
  const Trial& trial = found->second;
  const bool own_word = !trial.unsaid.empty();
  const PeerId other = own_word ? *trial.unsaid.begin() : *trial.silent.begin();
  return "its links to the members are tried: " +
         (own_word ? "it has not answered about " + name(s, other)
                   : name(s, other) + " has not answered");
}

}  // namespace pccl::master
