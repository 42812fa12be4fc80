// A master and some peers that tell a membership story, one command at a time: what a transcript
// (tests/sim/transcripts/*.txt) runs. Links come up at once, the register always answers, states
// are hashed and fetched at once, and every message arrives before the next command, unless it is
// held.
//
// Commands (N, M: peers; KEY: step.index):
//   config min_peers=2 hold_below=1 run=name again=1     before boot
//   boot | die | clock SECONDS [unix=SECONDS] | over TIMER [N]                  the master; TIMER:
//   founding patience refound absence connect N [replica=a attempt=0 rank=0 size=1 run=name
//   state=REVISION/NAME] close N | crash N | died N (its process is seen to have ended) its
//   connection breaks; the process dies hold N | release N what the master sends to N waits
//   mute N | cut N M | heal N M: N answers no peer; N and M have no link (heal: they may) issue N
//   [needs_all|root=M] | complete N KEY | returned N KEY | time_out N KEY | beat N mismatch N KEY |
//   suspect N M | cannot N M | relinked N M refresh N | resume N | finish N | state N REVISION/NAME
//   | leave N [now] | bye N
#pragma once

#include <deque>
#include <initializer_list>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "membership/master.h"
#include "membership/peer.h"

namespace pccl::story {

inline std::string text(PeerId p) { return std::to_string(p.value); }
inline std::string text(const std::vector<PeerId>& peers) {
  std::string out = "[";
  for (const PeerId p : peers) out += (out.size() > 1 ? " " : "") + text(p);
  return out + "]";
}
inline std::string text(const std::vector<Member>& members) {
  std::vector<PeerId> peers;
  for (const Member& m : members) peers.push_back(m.peer());
  return text(peers);
}
inline std::string text(const std::vector<OpKey>& ops) {
  std::string out;
  for (const OpKey op : ops) out += (out.empty() ? "" : ",") + to_string(op);
  return out;
}
inline std::string text(const StateRoot& root) {
  if (!root.present) return "none";
  return std::to_string(root.revision) + "/" + std::string(1, static_cast<char>(root.digest[0]));
}
inline std::string text(const Error& error) {
  return std::string(error_name(error.code)) + " \"" + error.text + "\"";
}
inline std::string text(const Failure& f) { return to_string(f.from) + " " + text(f.error); }
inline std::string text(const std::vector<Relay>& relays) {
  std::string line;
  for (const Relay& r : relays) {
    line += ", " + text(r.a) + " and " + text(r.b) + " over " + text(r.via);
  }
  return line;
}
inline std::string text(const std::vector<StepFlag>& flags) {
  std::string out;
  for (const StepFlag& f : flags) {
    out += " boundary " + std::to_string(f.step) + (f.votes ? " votes" : " does not vote");
  }
  return out;
}

// What a message says, in one line.
inline std::string line(const Hello& m) { return m.at_door ? "hello, at the door" : "hello"; }
inline std::string line(const Ready& m) { return "ready " + to_string(m.epoch); }
inline std::string line(const Cannot& m) { return "cannot reach " + text(m.peer); }
inline std::string line(const Suspect& m) {
  return "suspects " + text(m.peer) + (m.refused ? ", refused" : "");
}
inline std::string line(const Relinked& m) { return "relinked " + text(m.peer); }
inline std::string line(const Done& m) { return "done " + text(m.ops); }
inline std::string line(const Mismatch& m) { return "mismatch " + to_string(m.op); }
inline std::string line(const Expired& m) { return "expired " + to_string(m.op); }
inline std::string line(const Vote& m) {
  return std::string(m.kind == VoteKind::resume ? "votes to resume" : "votes") + " at step " +
         std::to_string(m.step) +
         (m.finish ? " that the run is finished" : ", state " + text(m.root));
}
inline std::string line(const Tried& m) {
  std::string all;
  for (const TriedLink& link : m.links) {
    add_to_list(all, (link.reason.empty() ? "has a link to " : "has no link to ") +
                         text(link.peer) + (link.reason.empty() ? "" : ": " + link.reason));
  }
  return all;
}
inline std::string line(const Measured& m) {
  return "link to " + text(m.peer) + " carries " + std::to_string(m.rate);
}
inline std::string line(const Knock& m) { return "knocks, state " + text(m.root); }
inline std::string line(const Leave& m) {
  return std::string("wants to leave") + (m.at_once ? " at once" : "");
}
inline std::string line(const Bye& m) {
  return "bye" + (m.failure.empty() ? "" : ": " + m.failure);
}
inline std::string line(const Heartbeat& m) {
  return "heartbeat, issued up to " + to_string(m.issued);
}
inline std::string line(const StatusRequest&) { return "status request"; }
inline std::string line(const StoreRequest&) { return "store request"; }
inline std::string line(const Welcome& m) {
  return "welcome" + std::string(m.founded ? ", founded" : "") +
         (m.has_boundaries ? ", has boundaries" : "") + ", rank " +
         std::to_string(m.provisional_rank) + " of " + std::to_string(m.provisional_size);
}
inline std::string line(const Try& m) {
  std::string out = "try";
  for (const Handle& handle : m.open) out += " " + text(handle.peer);
  return out + (m.drop.empty() ? "" : " no more " + text(m.drop));
}
inline std::string line(const Measure& m) {
  const std::string known = m.known > 0 ? ", known " + std::to_string(m.known) : "";
  return "measure " + text(m.peer) + known;
}
inline std::string line(const Propose& m) {
  return "propose " + to_string(m.epoch.id) + " " + text(m.epoch.members) +
         (m.epoch.boundary ? " boundary" : "") + (m.sync ? " state " + text(m.sync->root) : "") +
         (m.sync ? " from " + text(m.sync->sources) : "") + text(m.epoch.relays);
}
inline std::string line(const Start& m) {
  return "start " + to_string(m.epoch) + " step " + std::to_string(m.verdict.passed) + " pinned " +
         text(m.verdict.pinned) + " committed <" + to_string(m.verdict.committed.below) +
         (m.verdict.committed.also.empty() ? "" : " " + text(m.verdict.committed.also)) +
         (m.verdict.failure ? " fails from " + text(*m.verdict.failure) : "") +
         text(m.verdict.flags);
}
inline std::string line(const Commit& m) { return "commit " + text(m.ops) + text(m.flags); }
inline std::string line(const FailOp& m) { return "fail " + text(m.failure); }
inline std::string line(const Evicted& m) { return "evicted: " + m.text; }
inline std::string line(const Left& m) {
  return m.ended.empty() ? "left" : "left " + text(m.members) + ", " + m.ended;
}
inline std::string line(const Refuse& m) {
  return "refused" + std::string(m.ended ? ", ended" : "") + ": " + text(m.error);
}
inline std::string line(const Status&) { return "status"; }
inline std::string line(const Hold& m) { return "hold: " + m.text; }
inline std::string line(const StoreReply&) { return "store reply"; }

// What a peer does, in one line; "" where the message says it all.
inline std::string line(const peer::ToMaster&) { return ""; }
inline std::string line(const peer::StopData&) { return "stops data"; }
inline std::string line(const peer::Connect& a) { return "connects to " + text(a.members); }
inline std::string line(const peer::TryLinks&) { return ""; }
inline std::string line(const peer::MeasureLink&) { return ""; }
inline std::string line(const peer::HashState&) { return "hashes its state"; }
inline std::string line(const peer::Fetch& a) { return "fetches " + text(a.plan.root); }
inline std::string line(const peer::Adopt&) { return "adopts it"; }
inline std::string line(const peer::Configure& a) {
  return "configures " + to_string(a.epoch) + " " + text(a.members) +
         (a.lost.empty() ? "" : " lost " + text(a.lost)) +
         (a.joined.empty() ? "" : " joined " + text(a.joined));
}
inline std::string line(const peer::RunOp& a) { return "runs " + to_string(a.op); }
inline std::string line(const peer::RestoreOp& a) { return "restores " + to_string(a.op); }
inline std::string line(const peer::CommitOp& a) { return "returns " + to_string(a.op); }
inline std::string line(const peer::FailOp& a) {
  return "raises at " + to_string(a.op) + ": " + text(a.error);
}
inline std::string line(const peer::EnterStep& a) {
  return "enters step " + std::to_string(a.step) + (a.voted ? ", voted" : "") +
         (a.admitted ? ", admitted" : "") + (a.root.present ? ", state " + text(a.root) : "");
}
inline std::string line(const peer::Renumber& a) { return "ranks are " + text(a.pinned); }
inline std::string line(const peer::WasEvicted&) { return "is evicted"; }
inline std::string line(const peer::WasRefused& a) {
  return "is refused: " + std::string(error_name(a.error.code));
}
inline std::string line(const peer::HasLeft& a) {
  return a.ended.empty() ? "has left" : "has finished";
}
inline std::string line(const peer::Greeted&) { return ""; }
inline std::string line(const peer::Say&) { return ""; }

class Story {
 public:
  /// Carries out one command and returns what came of it, line by line.
  std::vector<std::string> run(const std::string& command) {
    lines_.clear();
    std::istringstream words(command);
    std::string verb;
    words >> verb;
    args_.assign(std::istream_iterator<std::string>(words), {});
    command_ = command;
    act(verb);
    settle();
    return lines_;
  }
  /// What came of the last one.
  std::string run_all(std::initializer_list<const char*> commands) {
    std::string last;
    for (const char* command : commands) {
      last.clear();
      for (const std::string& line : run(command)) last += line + "\n";
    }
    return last;
  }

  [[nodiscard]] const master::State& master() const { return master_; }
  [[nodiscard]] const peer::State& peer(std::uint64_t p) const { return peers_.at(PeerId{p}).core; }
  [[nodiscard]] const master::Register& held() const { return held_; }

 private:
  struct Player {
    peer::State core;
    bool connected = false;
    bool held = false;
    bool over = false;
    StateRoot state{true, 0, {'a'}};
    StateRoot fetched;
    std::deque<MasterToPeer> waiting;
  };

  void say(const std::string& text) { lines_.push_back(text); }
  [[nodiscard]] PeerId who(std::size_t at = 0) const { return PeerId{std::stoull(args_.at(at))}; }
  [[nodiscard]] OpKey key() const {
    const std::string& text = args_.at(1);
    const auto dot = text.find('.');
    return OpKey{std::stoull(text.substr(0, dot)), std::stoull(text.substr(dot + 1))};
  }
  [[nodiscard]] std::string option(const std::string& name, const std::string& otherwise) const {
    for (const std::string& arg : args_) {
      if (arg.rfind(name + "=", 0) == 0) return arg.substr(name.size() + 1);
    }
    return otherwise;
  }
  static StateRoot root_of(const std::string& text) {
    const auto slash = text.find('/');
    StateRoot root{true, std::stoull(text.substr(0, slash)), {}};
    root.digest[0] = static_cast<std::uint8_t>(text.at(slash + 1));
    return root;
  }

  void act(const std::string& verb) {
    if (verb == "config") {
      master_.config.min_peers = static_cast<std::uint32_t>(std::stoul(option("min_peers", "2")));
      master_.config.hold_below = static_cast<std::uint32_t>(std::stoul(option("hold_below", "1")));
      master_.config.run = option("run", "");
      master_.config.again = option("again", "0") == "1";
    } else if (verb == "boot") {
      up_ = true;
      to_master(master::TakenOver{held_});
    } else if (verb == "die") {
      up_ = false;
      const master::Config config = master_.config;
      master_ = master::State{};
      master_.config = config;
      for (auto& [p, player] : peers_) lose_master(p, player);
    } else if (verb == "clock") {
      to_master(master::Clock{std::stoull(args_.at(0)), std::stoull(option("unix", "0"))});
    } else if (verb == "over") {
      over(args_.at(0));
    } else if (verb == "connect") {
      connect();
    } else if (verb == "close" || verb == "crash") {
      Player& player = peers_.at(who());
      if (verb == "crash") player.over = true;
      lose_master(who(), player);
      to_master(master::PeerDisconnected{who()});
    } else if (verb == "died") {
      to_master(master::PeerDied{who()});
    } else if (verb == "mute") {
      mute_.insert(who());
    } else if (verb == "cut" || verb == "heal") {
      const std::pair<PeerId, PeerId> pair = std::minmax({who(), who(1)});
      verb == "cut" ? static_cast<void>(down_.insert(pair)) : static_cast<void>(down_.erase(pair));
    } else if (verb == "hold" || verb == "release") {
      peers_.at(who()).held = verb == "hold";
    } else {
      program(verb);
    }
  }

  void over(const std::string& timer) {
    if (timer == "founding") to_master(master::FoundingOver{});
    if (timer == "patience") to_master(master::PatienceOver{});
    if (timer == "refound") to_master(master::RefoundOver{});
    if (timer == "absence") to_master(master::PeerGone{who(1), "not back in time"});
  }

  void connect() {
    Player& player = peers_[who()];
    peer::State& core = player.core;
    core.self.handle.peer = who();
    core.run = option("run", "");
    core.self.place.replica = option("replica", "r" + args_.at(0));
    core.self.place.attempt = std::stoull(option("attempt", "0"));
    core.self.place.rank = static_cast<std::uint32_t>(std::stoul(option("rank", "0")));
    core.self.place.size = static_cast<std::uint32_t>(std::stoul(option("size", "1")));
    if (option("state", "") != "") player.state = root_of(option("state", ""));
    player.connected = true;
    to_peer(who(), peer::MasterConnected{});
  }

  void program(const std::string& verb) {
    const PeerId p = who();
    Player& player = peers_.at(p);
    if (verb == "issue") {
      peer::Issued event;
      if (args_.size() > 1 && args_[1] == "needs_all") event.loss = peer::LossClass::needs_all;
      if (option("root", "") != "") {
        event.loss = peer::LossClass::needs_root;
        event.root = PeerId{std::stoull(option("root", ""))};
      }
      to_peer(p, event);
    } else if (verb == "complete") {
      to_peer(p, peer::Completed{key()});
    } else if (verb == "returned") {
      to_peer(p, peer::Returned{key(), player.core.started->id});
    } else if (verb == "time_out") {
      to_peer(p, peer::TimedOut{key()});
    } else if (verb == "beat") {
      to_wire(p, Heartbeat{peer::next_key(player.core)});
    } else if (verb == "mismatch") {
      to_peer(p, peer::FoundMismatch{key(), "all_reduce here, barrier there"});
    } else if (verb == "suspect") {
      to_peer(p, peer::LinkClosed{who(1), false});
    } else if (verb == "cannot") {
      to_peer(p, peer::LinkFailed{player.core.accepted->id, who(1), "no route"});
    } else if (verb == "relinked") {
      to_peer(p, peer::LinkBack{who(1)});
    } else if (verb == "refresh") {
      to_peer(p, peer::AtBoundary{});
    } else if (verb == "finish") {
      to_peer(p, peer::AtBoundary{
                     VoteKind::refresh, false, true, {false, player.state.revision, {}}, true});
    } else if (verb == "resume") {
      to_peer(p, peer::AtBoundary{VoteKind::resume, false, false, {}});
    } else if (verb == "state") {
      player.state = root_of(args_.at(1));
    } else if (verb == "leave") {
      to_peer(p, peer::WantsToLeave{args_.size() > 1 && args_.at(1) == "now"});
    } else if (verb == "bye") {
      to_peer(p, peer::SaysBye{args_.size() > 1 ? args_.at(1) : ""});
    } else {
      say("no such command: " + command_);
    }
  }

  /// Delivers until nothing moves any more.
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& [p, player] : peers_) {
        while (!player.held && player.connected && !player.waiting.empty()) {
          const MasterToPeer message = player.waiting.front();
          player.waiting.pop_front();
          moved = true;
          std::visit([&, q = p](const auto& m) { say("master -> " + text(q) + ": " + line(m)); },
                     message);
          to_peer(p, peer::FromMaster{message});
        }
      }
    }
  }

  void to_wire(PeerId p, const PeerToMaster& message) {
    std::visit([&](const auto& m) { say(text(p) + " -> master: " + line(m)); }, message);
    if (!up_) return;
    if (const auto* hello = std::get_if<Hello>(&message)) {
      to_master(master::PeerConnected{*hello});
    } else {
      to_master(master::PeerMessage{p, message});
    }
  }

  void lose_master(PeerId p, Player& player) {
    if (!player.connected) return;
    player.connected = false;
    player.waiting.clear();
    if (!player.over) to_peer(p, peer::MasterLost{});
  }

  void to_peer(PeerId p, const peer::Event& event) {
    Player& player = peers_.at(p);
    if (player.over) return;
    for (const peer::Action& action : peer::step(player.core, event)) {
      std::visit(
          [&](const auto& a) {
            const std::string said = line(a);
            if (!said.empty()) say("  " + text(p) + " " + said);
          },
          action);
      if (const auto* up = std::get_if<peer::ToMaster>(&action)) to_wire(p, up->message);
      if (const auto* connect = std::get_if<peer::Connect>(&action)) {
        to_peer(p, peer::LinksUp{connect->epoch});
      }
      if (const auto* links = std::get_if<peer::TryLinks>(&action)) {
        peer::LinksTried tried;
        for (const Handle& other : links->open) {
          const bool mute = mute_.contains(p) || mute_.contains(other.peer);
          const bool down = down_.contains(std::minmax(p, other.peer));
          if (mute_.contains(p)) continue;
          tried.links.push_back({other.peer, mute || down ? "no answer" : ""});
        }
        to_peer(p, std::move(tried));
      }
      if (std::holds_alternative<peer::HashState>(action)) {
        to_peer(p, peer::RootKnown{player.state});
      }
      if (const auto* fetch = std::get_if<peer::Fetch>(&action)) {
        player.fetched = fetch->plan.root;
        to_peer(p, peer::Verified{player.fetched});
      }
      if (std::holds_alternative<peer::Adopt>(action)) {
        player.state = player.fetched;
        to_peer(p, peer::Fetched{player.state});
      }
    }
  }

  void to_master(const master::Event& event) {
    if (!up_) return;
    for (const master::Action& action : master::step(master_, event)) {
      if (const auto* send = std::get_if<master::Send>(&action)) {
        const auto player = peers_.find(send->peer);
        if (player != peers_.end()) player->second.waiting.push_back(send->message);
      } else if (const auto* to_all = std::get_if<master::SendAll>(&action)) {
        for (const PeerId p : to_all->peers) {
          const auto player = peers_.find(p);
          if (player != peers_.end()) player->second.waiting.push_back(to_all->message);
        }
      } else if (const auto* write = std::get_if<master::WriteRegister>(&action)) {
        held_ = write->to;
        say("register: incarnation " + std::to_string(held_.incarnation) +
            (held_.epoch ? " epoch " + to_string(held_.epoch->id) : "") + " passed " +
            std::to_string(held_.passed) + (held_.over ? " over" : "") +
            (held_.ended ? " finished after step " + std::to_string(held_.ended->step) : ""));
        to_master(master::RegisterWritten{held_, true});
      } else if (const auto* said = std::get_if<master::Say>(&action)) {
        say("master says: " + said->text);
      } else if (const auto* timer = std::get_if<master::StartTimer>(&action)) {
        say("timer " + name(timer->kind) +
            (timer->peer == PeerId{} ? "" : " of " + text(timer->peer)));
      } else if (std::holds_alternative<master::RunOver>(action)) {
        say("run over");
      } else if (const auto* close = std::get_if<master::Close>(&action)) {
        say("closes " + text(close->peer));
      }
    }
  }

  static std::string name(master::TimerKind kind) {
    switch (kind) {
      case master::TimerKind::patience:
        return "patience";
      case master::TimerKind::founding:
        return "founding";
      case master::TimerKind::refound:
        return "refound";
      case master::TimerKind::absence:
        return "absence";
    }
    return "";
  }

  master::State master_;
  master::Register held_;
  bool up_ = false;
  std::map<PeerId, Player> peers_;
  std::set<PeerId> mute_;                     // connected to the master, and answer no peer
  std::set<std::pair<PeerId, PeerId>> down_;  // without a link
  std::vector<std::string> lines_;
  std::vector<std::string> args_;
  std::string command_;
};

}  // namespace pccl::story
