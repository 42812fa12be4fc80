// What a commit and a change of members cost with up to a thousand peers:
//   pccl_fleet PEERS | REPLICASxRANKS ...
// One master's core and the cores of all peers, over queues in memory and with the real codec; no
// sockets, no threads, no data. For each size: a founding, commits, the loss of a replica in the
// middle of an operation, the admission of a tenth, the departure of a tenth at a boundary, and of
// one at once. Prints messages, bytes and CPU time of each. The exit status is 1 if a change ends
// otherwise than it must or takes more messages than a fixed number for each peer: times prove
// nothing on a busy machine, numbers of messages do.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "membership/master.h"
#include "membership/members.h"
#include "membership/peer.h"
#include "wire/codec.h"

namespace pccl {
namespace {

class Failed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
void check(bool good, const std::string& what) {
  if (!good) throw Failed(what);
}

double cpu_ms() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

/// Adds the CPU time of its scope.
class Meter {
 public:
  explicit Meter(double& sum) : sum_(sum), began_(cpu_ms()) {}
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;
  ~Meter() { sum_ += cpu_ms() - began_; }

 private:
  double& sum_;
  double began_;
};

struct Cost {
  std::uint64_t messages_in = 0, messages_out = 0;  // at the master
  std::uint64_t bytes_in = 0, bytes_out = 0;
  double master_ms = 0;  // its core
  double codec_ms = 0;   // encoding and decoding at the master
  double peers_ms = 0;   // all cores together
};

class Fleet {
  using Bytes = std::vector<std::byte>;

 public:
  Fleet(std::size_t replicas, std::uint32_t ranks) : ranks_(ranks) {
    master_.config.min_peers = static_cast<std::uint32_t>(replicas);
    to_master(master::TakenOver{});
    settle();
    for (std::size_t i = 0; i < replicas; ++i) add_replica();
    for (auto& [id, one] : peers_) connect(id);
    to_master(master::FoundingOver{});
    settle();
    check(members() == peers_.size(), "not founded");
  }

  [[nodiscard]] std::size_t members() const {
    return master_.running ? master_.held->epoch->members.size() : 0;
  }
  [[nodiscard]] std::size_t peers() const { return peers_.size(); }
  Cost take() { return std::exchange(cost_, Cost{}); }

  /// One operation at everybody; its data are there at once.
  void reduce() {
    issue();
    complete();
    settle();
    for (auto& [id, one] : peers_) check(one.committed == 1, "an operation was not committed");
  }

  void refresh() {
    for (auto& [id, one] : peers_) {
      if (one.core.at_boundary || one.core.over) continue;
      to_peer(id, peer::AtBoundary{VoteKind::refresh, /*verify=*/true, true, root()});
    }
    settle();
    check(members() == peers_.size(), "not all are members");
    for (auto& [id, one] : peers_) check(!one.core.at_boundary, "a boundary has not ended");
  }

  /// A replica dies while all have an operation in flight, which the others do again.
  void lose_replica() {
    issue();
    for (const PeerId id : last_replica()) {
      peers_.erase(id);
      to_master(master::PeerGone{id, "its connection has closed"});
    }
    settle();
    check(members() == peers_.size(), "the loss has not ended");
    complete();
    settle();
    for (auto& [id, one] : peers_) check(one.committed == 1, "an operation was not replayed");
  }

  void admit(std::size_t replicas) {
    std::vector<PeerId> newcomers;
    for (std::size_t i = 0; i < replicas; ++i) {
      for (const PeerId id : add_replica()) newcomers.push_back(id);
    }
    for (const PeerId id : newcomers) connect(id);
    settle();
    to_master(master::Clock{++now_s_, 0});  // the links of those that came after the first
    settle();
    refresh();
  }

  void leave(std::size_t replicas) {
    const std::size_t before = peers_.size();
    for (std::size_t i = 0; i < replicas; ++i) {
      const auto& members = master_.held->epoch->members;
      to_peer(members[i * ranks_].peer(), peer::WantsToLeave{false});
    }
    settle();
    refresh();
    check(peers_.size() == before - replicas * ranks_, "not all have left");
  }

  /// Rank 0, which takes a heartbeat of everybody.
  void leave_at_once() {
    const std::size_t before = peers_.size();
    to_peer(master_.held->epoch->members.front().peer(), peer::WantsToLeave{true});
    settle();
    for (auto& [id, one] : peers_) up(id, Heartbeat{peer::next_key(one.core)});
    settle();
    check(members() == before - ranks_ && peers_.size() == members(), "it has not left at once");
  }

 private:
  struct One {
    peer::State core;
    int committed = 0;
  };

  static StateRoot root() { return StateRoot{true, 1, {}}; }

  std::vector<PeerId> add_replica() {
    std::vector<PeerId> ids;
    const std::string name = ranks_ == 1 ? "" : "replica" + std::to_string(++replicas_);
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      const PeerId id{++ids_};
      Member& self = peers_[id].core.self;
      self.handle.peer = id;
      self.handle.addresses = {"10.11." + std::to_string(ids_ / 256) + "." +
                               std::to_string(ids_ % 256) + ":48149"};
      self.place = Place{name.empty() ? to_string(id) : name, 0, rank, ranks_};
      ids.push_back(id);
    }
    return ids;
  }

  [[nodiscard]] std::vector<PeerId> last_replica() const {
    const auto& members = master_.held->epoch->members;
    std::vector<PeerId> ids;
    for (std::size_t i = members.size() - ranks_; i < members.size(); ++i) {
      ids.push_back(members[i].peer());
    }
    return ids;
  }

  void connect(PeerId id) { to_peer(id, peer::MasterConnected{}); }

  void issue() {
    for (auto& [id, one] : peers_) {
      one.committed = 0;
      to_peer(id, peer::Issued{});
    }
  }
  void complete() {
    for (auto& [id, one] : peers_) {
      const OpKey key = peer::next_key(one.core);
      to_peer(id, peer::Completed{OpKey{key.step, key.index - 1}});
    }
  }

  void up(PeerId from, const PeerToMaster& message) {
    up_.emplace_back(from, encode(message));
    ++cost_.messages_in;
    cost_.bytes_in += up_.back().second.size();
  }

  void down(PeerId to, std::shared_ptr<const Bytes> bytes) {
    ++cost_.messages_out;
    cost_.bytes_out += bytes->size();
    down_.emplace_back(to, std::move(bytes));
  }

  void to_peer(PeerId id, const peer::Event& event) {
    One& one = peers_.at(id);
    peer::Actions actions;
    {
      const Meter meter(cost_.peers_ms);
      actions = peer::step(one.core, event);
    }
    for (const peer::Action& action : actions) {
      if (const auto* said = std::get_if<peer::ToMaster>(&action)) up(id, said->message);
      if (const auto* connects = std::get_if<peer::Connect>(&action)) {
        to_peer(id, peer::LinksUp{connects->epoch});
      }
      if (const auto* links = std::get_if<peer::TryLinks>(&action)) {
        peer::LinksTried tried;
        for (const Handle& other : links->open) tried.links.push_back({other.peer, ""});
        to_peer(id, tried);
      }
      if (const auto* fetch = std::get_if<peer::Fetch>(&action)) {
        to_peer(id, peer::Fetched{fetch->plan.root});
      }
      if (std::holds_alternative<peer::CommitOp>(action)) ++one.committed;
    }
  }

  void to_master(const master::Event& event) {
    master::Actions actions;
    {
      const Meter meter(cost_.master_ms);
      actions = master::step(master_, event);
    }
    for (const master::Action& action : actions) {
      if (const auto* send = std::get_if<master::Send>(&action)) {
        const Meter meter(cost_.codec_ms);
        down(send->peer, std::make_shared<const Bytes>(encode(send->message)));
      } else if (const auto* to_all = std::get_if<master::SendAll>(&action)) {
        const Meter meter(cost_.codec_ms);
        const auto bytes = std::make_shared<const Bytes>(encode(to_all->message));
        for (const PeerId peer : to_all->peers) down(peer, bytes);
      } else if (const auto* write = std::get_if<master::WriteRegister>(&action)) {
        check(!written_, "two writes at once");
        written_ = write->to;
      }
    }
  }

  /// Delivers until nothing moves any more: what goes up first, in order.
  void settle() {
    while (written_ || !up_.empty() || !down_.empty()) {
      if (written_) {
        const master::Register to = *std::exchange(written_, std::nullopt);
        to_master(master::RegisterWritten{to, true});
      } else if (!up_.empty()) {
        const auto [from, bytes] = std::move(up_.front());
        up_.pop_front();
        if (!peers_.contains(from)) continue;
        Result<PeerToMaster> message = [&, &read = bytes] {
          const Meter meter(cost_.codec_ms);
          return decode_peer_to_master(read);
        }();
        if (const auto* hello = std::get_if<Hello>(&message.value())) {
          to_master(master::PeerConnected{*hello});
        } else {
          to_master(master::PeerMessage{from, std::move(message.value())});
        }
      } else {
        const auto [to, bytes] = std::move(down_.front());
        down_.pop_front();
        const auto one = peers_.find(to);
        if (one == peers_.end()) continue;
        to_peer(to, peer::FromMaster{decode_master_to_peer(*bytes).value()});
        if (one->second.core.over) {
          peers_.erase(one);
        } else if (!one->second.core.started && !one->second.core.at_boundary &&
                   master_.held->passed > 0) {
          to_peer(to, peer::AtBoundary{VoteKind::refresh, false, true, root()});  // to the door
        }
      }
    }
  }

  const std::uint32_t ranks_;
  std::uint64_t ids_ = 0;
  std::uint64_t now_s_ = 0;
  std::uint64_t replicas_ = 0;
  master::State master_;
  std::optional<master::Register> written_;
  std::map<PeerId, One> peers_;
  std::deque<std::pair<PeerId, Bytes>> up_;
  std::deque<std::pair<PeerId, std::shared_ptr<const Bytes>>> down_;
  Cost cost_;
};

/// Of every change the master sends and hears no more than so many messages for each peer.
constexpr double kMessagesPerPeerMax = 10;

void row(const std::string& size, const char* what, std::size_t peers, const Cost& cost) {
  const std::uint64_t messages = cost.messages_in + cost.messages_out;
  check(static_cast<double>(messages) <= kMessagesPerPeerMax * static_cast<double>(peers),
        size + ": " + what + " takes " + std::to_string(messages) + " messages");
  std::printf("| %s | %s | %llu | %.0f | %.0f | %.2f | %.2f | %.3f |\n", size.c_str(), what,
              static_cast<unsigned long long>(messages), static_cast<double>(cost.bytes_in) / 1e3,
              static_cast<double>(cost.bytes_out) / 1e3, cost.master_ms, cost.codec_ms,
              cost.peers_ms / static_cast<double>(peers));
  std::fflush(stdout);
}

void walk(const std::string& size) {
  char* end = nullptr;
  const auto replicas = static_cast<std::size_t>(std::strtoul(size.c_str(), &end, 10));
  const auto ranks = *end == 'x' ? static_cast<std::uint32_t>(std::strtoul(end + 1, nullptr, 10))
                                 : std::uint32_t{1};
  check(replicas > 0 && ranks > 0, "\"" + size + "\" is no size");
  const std::size_t tenth = std::max<std::size_t>(1, replicas / 10);
  Fleet fleet(replicas, ranks);
  const auto all = [&] { return fleet.peers(); };
  row(size, "founding", all(), fleet.take());
  fleet.refresh();
  row(size, "boundary that votes", all(), fleet.take());
  fleet.reduce();
  static_cast<void>(fleet.take());
  fleet.reduce();
  const Cost commit = fleet.take();
  check(commit.messages_in == all() && commit.messages_out == all(), "a commit is two for each");
  row(size, "commit", all(), commit);
  fleet.admit(tenth);
  row(size, "a tenth joins", all(), fleet.take());
  fleet.lose_replica();
  row(size, "a replica is lost, replay", all(), fleet.take());
  fleet.refresh();
  static_cast<void>(fleet.take());
  if (replicas > 1) {
    const std::size_t before = all();
    fleet.leave(std::min(tenth, replicas - 1));
    row(size, "a tenth leaves", before, fleet.take());
  }
  fleet.admit(1);
  static_cast<void>(fleet.take());
  const std::size_t before = all();
  fleet.leave_at_once();
  row(size, "one leaves at once", before, fleet.take());
}

}  // namespace
}  // namespace pccl

int main(int argc, char** argv) {
  std::printf(
      "| peers | change | messages | to the master, KB | from it, KB | its core, ms of CPU | its "
      "codec, ms | a peer's core, ms |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  try {
    for (int i = 1; i < argc; ++i) pccl::walk(argv[i]);
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
  }
  return 0;
}
