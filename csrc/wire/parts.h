// The parts of control messages: members, epochs, reports, verdicts, plans, as plain structs with
// their fields. The messages are in messages.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/handle.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/process_name.h"
#include "base/protocol.h"

namespace pccl {

using Bytes = std::vector<std::uint8_t>;
using Digest = std::array<std::uint8_t, 32>;

/// The sender's link to `peer` is up; with a reason: it did not come up, and the sender has given
/// it up.
struct TriedLink {
  PeerId peer;
  std::string reason = {};
  bool operator==(const TriedLink&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("peer", self.peer);
    visit("reason", self.reason, kTriedReasonBytesMax);
  }
};

/// Which copy of the model a peer belongs to, and its place in it. A process is a replica of one
/// rank, named after itself, unless it says otherwise.
struct Place {
  std::string replica;
  std::uint64_t attempt = 0;  // ranks of different attempts never make one replica
  std::uint32_t rank = 0;     // = peer group
  std::uint32_t size = 1;
  bool operator==(const Place&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("replica", self.replica, kRunNameBytesMax);
    visit("attempt", self.attempt);
    visit("rank", self.rank);
    visit("size", self.size);
  }
};

struct Member {
  Handle handle;
  Place place;
  bool raises = false;       // on_loss="raise": no operation is replayed; the same at all members
  ProcessName process = {};  // a master of the same machine can see it end
  std::string token = {};    // by which it came in, as its master has seen; empty: without one
  static constexpr std::string_view kAddedFrom = "process";
  bool operator==(const Member&) const = default;
  [[nodiscard]] PeerId peer() const { return handle.peer; }

  static void fields(auto& self, auto&& visit) {
    visit("handle", self.handle);
    visit("place", self.place);
    visit("raises", self.raises);
    visit("process", self.process);
    visit("token", self.token, kTokenNameBytesMax);
  }
};

/// Two members that have no link of their own, and the third member that passes their data on.
struct Relay {
  PeerId a;  // before `b` in rank order
  PeerId b;
  PeerId via;
  bool operator==(const Relay&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("a", self.a);
    visit("b", self.b);
    visit("via", self.via);
  }
};

/// An epoch: its number and its members, in rank order. Survivors keep their order, newcomers come
/// last.
struct Epoch {
  EpochId id;
  std::vector<Member> members;
  EpochId base;                    // the epoch that the register held when this one was proposed
  bool boundary = false;           // its Start ends a voted boundary (or founds the run)
  std::vector<Relay> relays = {};  // each pair once
  /// The order in which data go round, as places in `members`; in each peer group that of its
  /// members. Empty: rank order.
  std::vector<std::uint32_t> ring = {};
  static constexpr std::string_view kAddedFrom = "ring";
  bool operator==(const Epoch&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("id", self.id);
    visit("members", self.members, kMembersMax);
    visit("base", self.base);
    visit("boundary", self.boundary);
    visit("relays", self.relays, kRelaysMax);
    visit("ring", self.ring, kMembersMax);
  }
};

/// A set of operations of one peer group: all before `below`, and those in `also`.
struct OpSet {
  OpKey below;
  std::vector<OpKey> also;  // sorted, each >= below
  bool operator==(const OpSet&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("below", self.below);
    visit("also", self.also, kReportOpsMax);
  }
};

/// Does the boundary that ends `step` vote?
struct StepFlag {
  std::uint64_t step = 0;
  bool votes = false;
  bool operator==(const StepFlag&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("step", self.step);
    visit("votes", self.votes);
  }
};

/// Hash and revision of a peer's shared state. `present` is false if the peer came to the boundary
/// without shared state.
struct StateRoot {
  bool present = false;
  std::uint64_t revision = 0;
  Digest digest{};
  bool operator==(const StateRoot&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("present", self.present);
    visit("revision", self.revision);
    visit("digest", self.digest);
  }
};

/// How a member stands at a boundary.
enum class VoteKind : std::uint8_t {
  none = 0,     // the member is at no boundary, or at one that does not vote
  refresh = 1,  // the boundary admits newcomers and makes the shared state equal
  resume = 2    // the boundary does neither: it clears a failure and updates rank and size
};

/// The lowest error code that is a failure: codes below it mean success.
inline constexpr std::size_t kFailureCodeMin = 1;

/// The first failure of a step: every operation from `from` on that is not committed fails with
/// `error`.
struct Failure {
  OpKey from;
  Error error;
  bool operator==(const Failure&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("from", self.from);
    visit("error", self.error, kFailureCodeMin);
  }
};

/// All that a peer tells a master, in Hello and again in Ready (docs/architecture/rules.md).
struct Report {
  std::optional<EpochId> started;       // newest epoch that the peer runs or has run
  std::vector<PeerId> started_members;  // members of that epoch, all peer groups
  EpochId accepted;  // newest proposed epoch that the peer has answered with Ready; 0: none
  std::uint64_t step = 0;
  VoteKind vote = VoteKind::none;  // how the peer stands at the boundary that ends `step`
  StateRoot root;                  // with a vote
  std::uint64_t passed = 0;        // the step that the last voted boundary began; 0: none yet
  std::vector<PeerId> pinned;      // the members as of that boundary, in rank order
  OpSet committed;                 // operations of this step that the peer knows to be committed
  std::vector<OpKey> done;         // complete in the started epoch, not known to be committed
  std::optional<Failure> failure;
  std::vector<StepFlag> flags;
  OpKey issued;  // one past the newest operation that the peer has issued
  /// The peer has issued no operation in this step, and lately none in which all pinned members
  /// must take part: other members may leave at once.
  bool calm = false;
  bool leaving = false;  // the peer's replica wants to leave, at the latest at the next boundary
  bool at_once = false;  // with `leaving`: before the boundary, if all members are calm
  bool finish = false;   // with a vote: the run is finished here, if all members say so
  static constexpr std::string_view kAddedFrom = "finish";
  bool operator==(const Report&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("started", self.started);
    visit("started_members", self.started_members, kMembersMax);
    visit("accepted", self.accepted);
    visit("step", self.step);
    visit("vote", self.vote);
    visit("root", self.root);
    visit("passed", self.passed);
    visit("pinned", self.pinned, kMembersMax);
    visit("committed", self.committed);
    visit("done", self.done, kReportOpsMax);
    visit("failure", self.failure);
    visit("flags", self.flags, kReportFlagsMax);
    visit("issued", self.issued);
    visit("calm", self.calm);
    visit("leaving", self.leaving);
    visit("at_once", self.at_once);
    visit("finish", self.finish);
  }
};

/// The verdict of Start on the operations that were in flight. `committed` is the set of the
/// receiver's peer group.
struct Verdict {
  OpSet committed;
  std::optional<Failure> failure;
  std::vector<StepFlag> flags;
  std::uint64_t passed = 0;
  std::vector<PeerId> pinned;
  bool operator==(const Verdict&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("committed", self.committed);
    visit("failure", self.failure);
    visit("flags", self.flags, kReportFlagsMax);
    visit("passed", self.passed);
    visit("pinned", self.pinned, kMembersMax);
  }
};

/// The state that all members hold when the proposed epoch starts. A member whose state differs
/// fetches this state from one of `sources` before it answers Ready.
struct SyncPlan {
  StateRoot root;
  std::vector<PeerId> sources;  // in the receiver's peer group, lowest rank first
  std::string why;              // which member's state was chosen, and by which rule
  bool operator==(const SyncPlan&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("root", self.root);
    visit("sources", self.sources, kMembersMax);
    visit("why", self.why, kTextBytesMax);
  }
};

/// A call of the key-value store.
enum class StoreOp : std::uint8_t {
  set = 1,
  get = 2,
  add = 3,
  compare_set = 4,
  wait = 5,
  check = 6,
  remove = 7,
  num_keys = 8,
  append = 9,
  list_keys = 10
};

/// A member, or a peer at the door, as the master sees it (membership/status.h).
struct MemberStatus {
  PeerId peer;
  std::string name;  // printable
  std::string host;  // empty: not known
  std::uint64_t process = 0;
  std::string address;  // where its connection comes from; empty: not connected
  std::string replica;
  std::uint32_t rank = 0;   // in its peer group; of a newcomer: 0
  std::uint32_t group = 0;  // its peer group
  std::string doing;        // a word of docs/reference/pccl-master.md
  std::string detail;       // the same for people
  std::uint64_t step = 0;
  std::uint64_t silent_ms = 0;  // since the master's last news of the peer
  std::uint64_t late_s = 0;     // for how long others have waited for the peer
  std::string token = {};       // by which it came in; empty: without one
  std::uint32_t site = 0;       // its site in its peer group, from 1; 0: not known
  // Of its links in its peer group, in the direction in which it sends.
  std::uint64_t farthest_us = 0;   // the longest round trip, when the epoch began; 0: not known
  PeerId slowest_to = {};          // the slowest one that has been measured; 0: none has
  std::uint64_t slowest_rate = 0;  // bytes a second
  std::uint64_t slowest_us = 0;    // its round trip where no queue delays
  static constexpr std::string_view kAddedFrom = "token";
  bool operator==(const MemberStatus&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("peer", self.peer);
    visit("name", self.name, kNameBytesMax);
    visit("host", self.host, kNameBytesMax);
    visit("process", self.process);
    visit("address", self.address, kAddressBytesMax);
    visit("replica", self.replica, kRunNameBytesMax);
    visit("rank", self.rank);
    visit("group", self.group);
    visit("doing", self.doing, kNameBytesMax);
    visit("detail", self.detail, kStatusTextBytesMax);
    visit("step", self.step);
    visit("silent_ms", self.silent_ms);
    visit("late_s", self.late_s);
    visit("token", self.token, kTokenNameBytesMax);
    visit("site", self.site);
    visit("farthest_us", self.farthest_us);
    visit("slowest_to", self.slowest_to);
    visit("slowest_rate", self.slowest_rate);
    visit("slowest_us", self.slowest_us);
  }
};

/// A line of the master's log.
struct EventStatus {
  std::uint64_t ago_ms = 0;
  bool warning = false;
  std::string text;
  bool operator==(const EventStatus&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("ago_ms", self.ago_ms);
    visit("warning", self.warning);
    visit("text", self.text, kStatusTextBytesMax);
  }
};

}  // namespace pccl
