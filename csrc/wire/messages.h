// Every control message, as a plain struct with its fields. Encoding, decoding, printing and fuzz
// input follow from `fields` (wire/codec.h); PROTOCOL.md has a section for each. A message exists
// only if it is in one of the variants at the end.
//
// A message can grow within a protocol version: fields are added at its end, and `kAddedFrom` names
// the first added field. A reader skips unknown fields at the end of a message, and gives missing
// fields, from `kAddedFrom` on, their defaults. A part (wire/parts.h) and the master's register can
// grow in the same way.
//
// visit(name, field[, limit...]): every field of free length has its limit: a text or a byte string
// its most bytes, a list its most entries and then, if the entries are of free length, the most
// bytes of an entry.
#pragma once

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
#include "base/lines.h"
#include "base/protocol.h"
#include "base/trips.h"
#include "wire/parts.h"
#include "wire/peer_messages.h"

namespace pccl {

// ------------------------------------------------------------------------------- peer to master

/// First message of a connection. Answered by Welcome, Refuse or Evicted.
struct Hello {
  static constexpr std::string_view kName = "hello";
  std::string run;  // empty: the run of this master, whatever its name
  Member member;
  Report report;
  bool at_door = false;      // a newcomer that has called refresh
  StateRoot door_root;       // with at_door: the newcomer's own state
  std::string package = {};  // version of the peer's pccl, for people
  std::string host = {};     // name of the machine on which the peer runs, for people
  /// Those of `start` and of `propose`, of the epochs in `report`: a master of this run has started
  /// the one and named the other.
  Digest started_mark = {};
  Digest accepted_mark = {};
  static constexpr std::string_view kAddedFrom = "package";
  bool operator==(const Hello&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("run", self.run, kRunNameBytesMax);
    visit("member", self.member);
    visit("report", self.report);
    visit("at_door", self.at_door);
    visit("door_root", self.door_root);
    visit("package", self.package, kPackageBytesMax);
    visit("host", self.host, kNameBytesMax);
    visit("started_mark", self.started_mark);
    visit("accepted_mark", self.accepted_mark);
  }
};

/// The sender is connected to all members of the proposed epoch in its peer group, and holds the
/// shared state.
struct Ready {
  static constexpr std::string_view kName = "ready";
  EpochId epoch;
  Report report;
  std::optional<Trips> trips = {};  // of the sender's links in its peer group; none: says nothing
  static constexpr std::string_view kAddedFrom = "trips";
  bool operator==(const Ready&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("epoch", self.epoch);
    visit("report", self.report);
    visit("trips", self.trips);
  }
};

/// The sender cannot reach `peer`, a member of the proposed or running epoch; if the epoch names a
/// third member `via` as the relay of the two, not over that one either.
struct Cannot {
  static constexpr std::string_view kName = "cannot";
  EpochId epoch;
  PeerId peer;
  std::string reason;
  PeerId via = {};
  bool operator==(const Cannot&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("epoch", self.epoch);
    visit("peer", self.peer);
    visit("reason", self.reason, kTextBytesMax);
    visit("via", self.via);
  }
};

/// The sender's link to `peer` has closed and is being dialled again. This is evidence, and alone
/// no loss.
struct Suspect {
  static constexpr std::string_view kName = "suspect";
  EpochId epoch;
  PeerId peer;
  bool refused = false;  // a new dial was refused
  bool operator==(const Suspect&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("epoch", self.epoch);
    visit("peer", self.peer);
    visit("refused", self.refused);
  }
};

/// The sender's link to `peer` is up again. Segments may have been lost, so the epoch cannot go on.
struct Relinked {
  static constexpr std::string_view kName = "relinked";
  EpochId epoch;
  PeerId peer;
  bool operator==(const Relinked&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("epoch", self.epoch);
    visit("peer", self.peer);
  }
};

/// The sender's part of these operations is complete.
struct Done {
  static constexpr std::string_view kName = "done";
  EpochId epoch;
  std::vector<OpKey> ops;
  bool operator==(const Done&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("epoch", self.epoch);
    visit("ops", self.ops, kReportOpsMax);
  }
};

/// The sender has found that the ranks called different operations, or has no memory for `op`. The
/// operation fails at all members.
struct Mismatch {
  static constexpr std::string_view kName = "mismatch";
  EpochId epoch;
  OpKey op;
  Error error;  // mismatch or no_memory
  bool operator==(const Mismatch&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("epoch", self.epoch);
    visit("op", self.op);
    visit("error", self.error);
  }
};

/// The time-out of `op` has passed at the sender. The master evicts the members that have not
/// issued `op`.
struct Expired {
  static constexpr std::string_view kName = "expired";
  EpochId epoch;
  OpKey op;
  bool operator==(const Expired&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("epoch", self.epoch);
    visit("op", self.op);
  }
};

/// A member stands at the boundary that ends `step`, and votes. Belongs to a step, not to an epoch.
struct Vote {
  static constexpr std::string_view kName = "vote";
  std::uint64_t step = 0;
  VoteKind kind = VoteKind::refresh;
  StateRoot root;
  bool finish = false;  // as in Report
  static constexpr std::string_view kAddedFrom = "finish";
  bool operator==(const Vote&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("step", self.step);
    visit("kind", self.kind);
    visit("root", self.root);
    visit("finish", self.finish);
  }
};

/// Answer to Try, for each peer that it names, and again when that has changed.
struct Tried {
  static constexpr std::string_view kName = "tried";
  std::vector<TriedLink> links;
  bool operator==(const Tried&) const = default;

  static void fields(auto& self, auto&& visit) { visit("links", self.links, kTriedLinksMax); }
};

/// Answer to Measure.
struct Measured {
  static constexpr std::string_view kName = "measured";
  PeerId peer;
  std::uint64_t rate = 0;     // bytes a second that the link to `peer` carries; 0: not measured
  std::uint64_t trip_us = 0;  // there and back where no queue delays; 0: not known
  bool operator==(const Measured&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("peer", self.peer);
    visit("rate", self.rate);
    visit("trip_us", self.trip_us);
  }
};

/// A newcomer has called refresh: from now on it waits at the door.
struct Knock {
  static constexpr std::string_view kName = "knock";
  StateRoot root;
  bool operator==(const Knock&) const = default;

  static void fields(auto& self, auto&& visit) { visit("root", self.root); }
};

/// The sender's replica wants to leave, at the latest at the next boundary.
struct Leave {
  static constexpr std::string_view kName = "leave";
  bool at_once = false;  // before the boundary, if no member has issued an operation in this step
  bool operator==(const Leave&) const = default;

  static void fields(auto& self, auto&& visit) { visit("at_once", self.at_once); }
};

/// The sender leaves now, without a boundary (destroy_process_group, exit of the interpreter).
struct Bye {
  static constexpr std::string_view kName = "bye";
  std::string failure = {};  // the error that ended its program; empty: it ended in good order
  static constexpr std::string_view kAddedFrom = "failure";
  bool operator==(const Bye&) const = default;

  static void fields(auto& self, auto&& visit) { visit("failure", self.failure, kTextBytesMax); }
};

/// Every heartbeat interval, in both directions. `issued` as in Report (0 from the master).
struct Heartbeat {
  static constexpr std::string_view kName = "heartbeat";
  OpKey issued;
  /// From a peer: its program has called nothing for the time-out of the group, or of boundaries.
  bool op_overdue = true;
  bool step_overdue = true;
  std::uint64_t fetched = 0;  // grows while it fetches, hashes or takes over the state
  std::uint64_t served = 0;   // grows with what others fetch from it, each state once for each peer
  std::uint64_t state_bytes = 0;  // of the state that it offers; 0: none
  static constexpr std::string_view kAddedFrom = "op_overdue";
  bool operator==(const Heartbeat&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("issued", self.issued);
    visit("op_overdue", self.op_overdue);
    visit("step_overdue", self.step_overdue);
    visit("fetched", self.fetched);
    visit("served", self.served);
    visit("state_bytes", self.state_bytes);
  }
};

/// Asks for the members of the run. Sent instead of Hello, by any process that reaches the master;
/// changes nothing. Answered by Status or Refuse, and the connection ends.
struct StatusRequest {
  static constexpr std::string_view kName = "status_request";
  std::string run;   // empty: whichever this master serves
  bool all = false;  // without a name: a master of several runs tells their names
  static constexpr std::string_view kAddedFrom = "all";
  bool operator==(const StatusRequest&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("run", self.run, kRunNameBytesMax);
    visit("all", self.all);
  }
};

/// A call of the key-value store. The master answers get and wait when all keys exist, or with the
/// error timed_out after `timeout_ms`. compare_set: values = {expected, desired}.
struct StoreRequest {
  static constexpr std::string_view kName = "store_request";
  std::uint64_t id = 0;
  StoreOp op = StoreOp::get;
  std::vector<std::string> keys;
  std::vector<Bytes> values;
  std::int64_t amount = 0;
  std::uint64_t timeout_ms = 0;
  bool operator==(const StoreRequest&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("id", self.id);
    visit("op", self.op);
    visit("keys", self.keys, kStoreKeysMax, kStoreKeyBytesMax);
    visit("values", self.values, kStoreKeysMax, kControlBytesMax);
    visit("amount", self.amount);
    visit("timeout_ms", self.timeout_ms);
  }
};

// ------------------------------------------------------------------------------- master to peer

/// Answer to a Hello that the master accepts.
struct Welcome {
  static constexpr std::string_view kName = "welcome";
  std::string run;
  std::uint32_t incarnation = 0;
  bool founded = false;
  bool has_boundaries = false;         // the run has passed a voted boundary
  std::uint32_t provisional_rank = 0;  // for a newcomer of a founded run: last rank, members + 1
  std::uint32_t provisional_size = 1;
  std::uint64_t heartbeat_ms = 0;
  // A peer that sends nothing for so long is evicted; a master that sends nothing for so long is
  // given up by the peer.
  std::uint64_t silence_ms = 0;
  std::string package;  // version of the master's pccl, for people
  static constexpr std::string_view kAddedFrom = "package";
  bool operator==(const Welcome&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("run", self.run, kRunNameBytesMax);
    visit("incarnation", self.incarnation);
    visit("founded", self.founded);
    visit("has_boundaries", self.has_boundaries);
    visit("provisional_rank", self.provisional_rank);
    visit("provisional_size", self.provisional_size);
    visit("heartbeat_ms", self.heartbeat_ms);
    visit("silence_ms", self.silence_ms);
    visit("package", self.package, kPackageBytesMax);
  }
};

/// Bring up, beside the links of the epoch, those to the peers of `open`, which may be members
/// later, and keep them; those to `drop` are needed for that no more. The epoch goes on meanwhile.
struct Try {
  static constexpr std::string_view kName = "try";
  std::vector<Handle> open;
  std::vector<PeerId> drop;
  bool operator==(const Try&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("open", self.open, kMembersMax);
    visit("drop", self.drop, kMembersMax);
  }
};

/// Find out how much the link to `peer`, a member of the receiver's peer group, carries.
struct Measure {
  static constexpr std::string_view kName = "measure";
  static constexpr std::string_view kAddedFrom = "known";
  PeerId peer;
  std::uint64_t known = 0;  // bytes a second; where operations show most of it, send nothing
  bool operator==(const Measure&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("peer", self.peer);
    visit("known", self.known);
  }
};

/// Ends the epoch that the receiver runs, and names the members of the next.
struct Propose {
  static constexpr std::string_view kName = "propose";
  Epoch epoch;
  std::optional<SyncPlan> sync;
  std::string why;   // "rank 2 (1f..) lost: connection closed"
  Digest mark = {};  // of a master with tokens; the receiver shows it in `hello`
  static constexpr std::string_view kAddedFrom = "mark";
  bool operator==(const Propose&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("epoch", self.epoch);
    visit("sync", self.sync);
    visit("why", self.why, kTextBytesMax);
    visit("mark", self.mark);
  }
};

/// All members are ready and the register holds the epoch: the epoch begins. Only this message
/// begins an epoch; until then peers keep the state of the epoch before.
struct Start {
  static constexpr std::string_view kName = "start";
  EpochId epoch;
  Verdict verdict;
  Digest mark = {};  // as that of `propose`, and another one
  Lines lines = {};  // of the receiver's peer group: the same ones for all its members
  static constexpr std::string_view kAddedFrom = "mark";
  bool operator==(const Start&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("epoch", self.epoch);
    visit("verdict", self.verdict);
    visit("mark", self.mark);
    visit("lines", self.lines);
  }
};

/// All members of the peer group have completed these operations in `epoch`.
struct Commit {
  static constexpr std::string_view kName = "commit";
  EpochId epoch;
  std::vector<OpKey> ops;
  std::vector<StepFlag> flags;  // of the steps of `ops`
  bool operator==(const Commit&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("epoch", self.epoch);
    visit("ops", self.ops, kReportOpsMax);
    visit("flags", self.flags, kReportFlagsMax);
  }
};

/// At every member the operation `failure.from` fails, and so does every later operation of the
/// step that is not committed.
struct FailOp {
  static constexpr std::string_view kName = "fail_op";
  EpochId epoch;
  Failure failure;
  bool operator==(const FailOp&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("epoch", self.epoch);
    visit("failure", self.failure);
  }
};

/// The run goes on without the receiver.
struct Evicted {
  static constexpr std::string_view kName = "evicted";
  std::string text;
  bool operator==(const Evicted&) const = default;

  static void fields(auto& self, auto&& visit) { visit("text", self.text, kTextBytesMax); }
};

/// The receiver has left the run, as it asked with Leave: at this boundary, or at once. Or the run
/// is finished, as all of its members have said.
struct Left {
  static constexpr std::string_view kName = "left";
  std::string ended = {};            // the run is finished: after which step, and when
  std::vector<PeerId> members = {};  // that finished the run, in rank order; empty: not known
  static constexpr std::string_view kAddedFrom = "ended";
  bool operator==(const Left&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("ended", self.ended, kTextBytesMax);
    visit("members", self.members, kMembersMax);
  }
};

/// The master does not accept the Hello: wrong run, version or place in a replica; or the run is
/// finished.
struct Refuse {
  static constexpr std::string_view kName = "refuse";
  Error error;
  bool ended = false;  // the run is finished: a reader of this field takes `error` as run_ended
  static constexpr std::string_view kAddedFrom = "ended";
  bool operator==(const Refuse&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("error", self.error, kFailureCodeMin);
    visit("ended", self.ended);
  }
};

/// The run stands still on purpose (--hold-below, members that may come back). The receiver logs
/// `text` once.
struct Hold {
  static constexpr std::string_view kName = "hold";
  std::string text;
  bool operator==(const Hold&) const = default;

  static void fields(auto& self, auto&& visit) { visit("text", self.text, kTextBytesMax); }
};

/// Answer to StatusRequest: nothing that is secret.
struct Status {
  static constexpr std::string_view kName = "status";
  std::string run;
  std::string package;
  std::uint64_t up_ms = 0;  // since this master was started
  std::string state;        // a word of docs/reference/pccl-master.md
  std::string waits_for;    // for people; empty: for nothing
  EpochId epoch;            // of the run; 0: it is not founded
  std::uint64_t step = 0;   // the newest step of a member
  std::uint32_t replicas = 0;
  std::uint32_t min_peers = 0;
  std::uint32_t hold_below = 0;
  std::uint32_t member_count = 0;  // `members` names the first of these
  std::uint32_t door_count = 0;
  std::vector<MemberStatus> members;   // in rank order
  std::vector<MemberStatus> door;      // in order of arrival
  std::vector<EventStatus> events;     // the newest at the end
  std::vector<std::string> runs = {};  // of the master, where they are asked for and are several
  static constexpr std::string_view kAddedFrom = "runs";
  bool operator==(const Status&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("run", self.run, kRunNameBytesMax);
    visit("package", self.package, kPackageBytesMax);
    visit("up_ms", self.up_ms);
    visit("state", self.state, kNameBytesMax);
    visit("waits_for", self.waits_for, kTextBytesMax);
    visit("epoch", self.epoch);
    visit("step", self.step);
    visit("replicas", self.replicas);
    visit("min_peers", self.min_peers);
    visit("hold_below", self.hold_below);
    visit("member_count", self.member_count);
    visit("door_count", self.door_count);
    visit("members", self.members, kStatusMembersMax);
    visit("door", self.door, kStatusMembersMax);
    visit("events", self.events, kStatusEventsMax);
    visit("runs", self.runs, kStatusRunsMax, kRunNameBytesMax);
  }
};

struct StoreReply {
  static constexpr std::string_view kName = "store_reply";
  std::uint64_t id = 0;
  Error error;
  std::vector<Bytes> values;
  std::vector<std::string> keys;  // list_keys
  std::int64_t amount = 0;        // add: the sum; check, remove: 1 or 0; num_keys: the number
  bool operator==(const StoreReply&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("id", self.id);
    visit("error", self.error);
    visit("values", self.values, kStoreKeysMax, kControlBytesMax);
    visit("keys", self.keys, kStoreKeysMax, kStoreKeyBytesMax);
    visit("amount", self.amount);
  }
};

using PeerToMaster =
    std::variant<Hello, Ready, Cannot, Suspect, Relinked, Done, Mismatch, Expired, Tried, Vote,
                 Knock, Leave, Bye, Heartbeat, StatusRequest, StoreRequest, Measured>;
using MasterToPeer = std::variant<Welcome, Try, Propose, Start, Commit, FailOp, Evicted, Left,
                                  Refuse, Hold, Heartbeat, Status, StoreReply, Measure>;
}  // namespace pccl
