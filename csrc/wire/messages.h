// Every control message, as a plain struct with its fields. Encoding, decoding, printing and fuzz
// input follow from `fields` (wire/codec.h); PROTOCOL.md has a section for each. What is not in one
// of the variants at the end does not exist.
//
// A message can grow within a protocol version: fields are added at its end, and `kAddedFrom` names
// the first of these. A reader skips what it does not know there, and what is missing from there on
// keeps its default. So can a part (wire/parts.h) and the master's register.
//
// visit(name, field[, limit...]): nothing of free length goes without its limit: for a list the
// number of entries, then, where entries are of free length, their bytes; for texts and byte
// strings the bytes.
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
#include "base/protocol.h"
#include "wire/parts.h"

namespace pccl {

// ------------------------------------------------------------------------------- peer to master

/// First message of a connection. Answered by Welcome, Refuse or Evicted.
struct Hello {
  static constexpr std::string_view kName = "hello";
  std::string run;  // empty: whichever run this master serves
  Member member;
  Report report;
  bool at_door = false;      // a newcomer that has called refresh
  StateRoot door_root;       // its own state, with at_door
  std::string package = {};  // version of its pccl, for people
  static constexpr std::string_view kAddedFrom = "package";
  bool operator==(const Hello&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("run", self.run, kRunNameBytesMax);
    visit("member", self.member);
    visit("report", self.report);
    visit("at_door", self.at_door);
    visit("door_root", self.door_root);
    visit("package", self.package, kPackageBytesMax);
  }
};

/// Connected to all members of the proposal in its peer group, and in possession of the shared
/// state.
struct Ready {
  static constexpr std::string_view kName = "ready";
  EpochId epoch;
  Report report;
  bool operator==(const Ready&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("epoch", self.epoch);
    visit("report", self.report);
  }
};

/// `peer` is a member of the proposed or running epoch and cannot be reached, also not over `via`
/// where the epoch names one for the two.
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

/// The link to `peer` has closed (evidence; the link is being dialled again).
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

/// The link to `peer` is back; segments may have been lost, so the epoch cannot go on.
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

/// Its part of these operations is complete.
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

/// It has found that the ranks called different operations, or it has no memory for this one: the
/// operation fails for all.
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

/// The time-out of `op` has passed at this peer: who has not issued it is evicted.
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
  bool operator==(const Vote&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("step", self.step);
    visit("kind", self.kind);
    visit("root", self.root);
  }
};

/// A newcomer has called refresh: from now on it waits at the door.
struct Knock {
  static constexpr std::string_view kName = "knock";
  StateRoot root;
  bool operator==(const Knock&) const = default;

  static void fields(auto& self, auto&& visit) { visit("root", self.root); }
};

/// Its replica wants to leave, at the latest at the next boundary.
struct Leave {
  static constexpr std::string_view kName = "leave";
  bool at_once = false;  // before that, if nobody has issued anything in this step
  bool operator==(const Leave&) const = default;

  static void fields(auto& self, auto&& visit) { visit("at_once", self.at_once); }
};

/// It goes now (destroy_process_group, exit of the interpreter).
struct Bye {
  static constexpr std::string_view kName = "bye";
  std::string failure = {};  // that ended its program; empty: it left in good order
  static constexpr std::string_view kAddedFrom = "failure";
  bool operator==(const Bye&) const = default;

  static void fields(auto& self, auto&& visit) { visit("failure", self.failure, kTextBytesMax); }
};

/// Every heartbeat interval, in both directions. `issued` as in Report (0 from the master).
struct Heartbeat {
  static constexpr std::string_view kName = "heartbeat";
  OpKey issued;
  bool operator==(const Heartbeat&) const = default;

  static void fields(auto& self, auto&& visit) { visit("issued", self.issued); }
};

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

/// A call of the key-value store. get and wait are answered when all keys are there, at the latest
/// after `timeout_ms` (timed_out). compare_set: values = {expected, desired}.
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

/// Answer to a Hello that was taken.
struct Welcome {
  static constexpr std::string_view kName = "welcome";
  std::string run;
  std::uint32_t incarnation = 0;
  bool founded = false;
  bool has_boundaries = false;         // the run has passed a voted boundary
  std::uint32_t provisional_rank = 0;  // for a newcomer of a founded run: last rank, members + 1
  std::uint32_t provisional_size = 1;
  std::uint64_t heartbeat_ms = 0;
  std::uint64_t silence_ms =
      0;                // who is silent for so long is evicted; the peer holds the master to it
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

/// Ends the epoch that the receiver runs, and names the members of the next.
struct Propose {
  static constexpr std::string_view kName = "propose";
  Epoch epoch;
  std::optional<SyncPlan> sync;
  std::string why;  // "rank 2 (1f..) lost: connection closed"
  bool operator==(const Propose&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("epoch", self.epoch);
    visit("sync", self.sync);
    visit("why", self.why, kTextBytesMax);
  }
};

/// All are ready and the register holds the epoch: it is in force. Nothing else changes anything.
struct Start {
  static constexpr std::string_view kName = "start";
  EpochId epoch;
  Verdict verdict;
  bool operator==(const Start&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("epoch", self.epoch);
    visit("verdict", self.verdict);
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

/// `failure.from` and all that follows and is not committed fails, at every member.
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

/// The receiver has left, as it wished: at this boundary, or at once.
struct Left {
  static constexpr std::string_view kName = "left";
  bool operator==(const Left&) const = default;
  static void fields(auto&, auto&&) {}
};

/// The Hello is not taken: wrong run, version, place.
struct Refuse {
  static constexpr std::string_view kName = "refuse";
  Error error;
  bool operator==(const Refuse&) const = default;

  static void fields(auto& self, auto&& visit) { visit("error", self.error, kFailureCodeMin); }
};

/// The run stands still on purpose (--hold-below, members that may come back): the receiver logs it
/// once.
struct Hold {
  static constexpr std::string_view kName = "hold";
  std::string text;
  bool operator==(const Hold&) const = default;

  static void fields(auto& self, auto&& visit) { visit("text", self.text, kTextBytesMax); }
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

// ------------------------------------------------------------------------------- peer to peer

/// Fixed groups: the sender leaves `group` in good order; it has completed, and sent what it owes
/// for, all operations before `finished`.
struct Farewell {
  static constexpr std::string_view kName = "farewell";
  GroupId group;
  OpKey finished;
  bool operator==(const Farewell&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("finished", self.finished);
  }
};

/// Fixed groups: the sender has failed the group, for this reason; the receiver does likewise.
struct GroupFailed {
  static constexpr std::string_view kName = "group_failed";
  GroupId group;
  Error error;
  bool operator==(const GroupFailed&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("error", self.error, kFailureCodeMin);
  }
};

/// Fixed groups: one operation fails at all ranks (they called different ones); the group goes on.
struct OpFailed {
  static constexpr std::string_view kName = "op_failed";
  GroupId group;
  OpKey op;
  Error error;
  bool late = false;  // it stands for an earlier one, which the sender had completed
  bool operator==(const OpFailed&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("op", self.op);
    visit("error", self.error, kFailureCodeMin);
    visit("late", self.late);
  }
};

/// The sender has issued every collective of `group` before `issued`: their segments may come
/// without limit.
struct Grant {
  static constexpr std::string_view kName = "grant";
  GroupId group;
  EpochId epoch;
  OpKey issued;
  bool operator==(const Grant&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("epoch", self.epoch);
    visit("issued", self.issued);
  }
};

/// The sender holds segments of `op` back (kUngrantedBytesMax): answered by Grant once it is
/// issued.
struct Want {
  static constexpr std::string_view kName = "want";
  GroupId group;
  EpochId epoch;
  OpKey op;
  bool operator==(const Want&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("epoch", self.epoch);
    visit("op", self.op);
  }
};

/// The sender waits for `op`, which it has issued as described here (numbers of base/types.h). Has
/// the receiver issued it too, and the same? Answered by TellIssued.
struct AskIssued {
  static constexpr std::string_view kName = "ask_issued";
  GroupId group;
  OpKey op;
  std::uint32_t kind = 0;
  std::uint32_t reduce = 0;
  std::uint32_t dtype = 0;
  std::int64_t root = -1;
  std::uint64_t count = 0;
  bool operator==(const AskIssued&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("op", self.op);
    visit("kind", self.kind);
    visit("reduce", self.reduce);
    visit("dtype", self.dtype);
    visit("root", self.root);
    visit("count", self.count);
  }
};

struct TellIssued {
  static constexpr std::string_view kName = "tell_issued";
  GroupId group;
  OpKey op;
  OpKey issued;  // one past its newest
  /// The oldest step of the schedule for which it waits itself; kNoStep: for none.
  std::uint32_t waits_at = 0;
  bool operator==(const TellIssued&) const = default;

  static constexpr std::uint32_t kNoStep = UINT32_MAX;
  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("op", self.op);
    visit("issued", self.issued);
    visit("waits_at", self.waits_at);
  }
};

/// Point-to-point: a send of `bytes` is there (number `index` with this tag from the sender); its
/// segments follow when the receiver has answered Accept. Small sends come as a segment without it.
struct Announce {
  static constexpr std::string_view kName = "announce";
  GroupId group;
  EpochId epoch;
  std::uint64_t tag = 0;
  std::uint64_t index = 0;
  std::uint64_t bytes = 0;
  bool operator==(const Announce&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("epoch", self.epoch);
    visit("tag", self.tag);
    visit("index", self.index);
    visit("bytes", self.bytes);
  }
};

/// Point-to-point: the receive for that send is posted (`complete` false), or complete (true).
struct Accept {
  static constexpr std::string_view kName = "accept";
  GroupId group;
  EpochId epoch;
  std::uint64_t tag = 0;
  std::uint64_t index = 0;
  bool complete = false;
  Error error;  // the receiver's buffer does not fit: the send fails too
  bool operator==(const Accept&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("epoch", self.epoch);
    visit("tag", self.tag);
    visit("index", self.index);
    visit("complete", self.complete);
    visit("error", self.error);
  }
};

/// Point-to-point: the sender of an announced send has given it up; nothing more of it comes.
struct Withdraw {
  static constexpr std::string_view kName = "withdraw";
  GroupId group;
  EpochId epoch;
  std::uint64_t tag = 0;
  std::uint64_t index = 0;
  Error error;  // of the receive
  bool operator==(const Withdraw&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("epoch", self.epoch);
    visit("tag", self.tag);
    visit("index", self.index);
    visit("error", self.error, kFailureCodeMin);
  }
};

/// Barriers: the sender waits at barrier `op`, and had sent `sends` times to the receiver before
/// it. Answered with Flushed once the receiver has called that barrier too and all its receives
/// from before it that have taken one of these sends are complete.
struct Flush {
  static constexpr std::string_view kName = "flush";
  GroupId group;
  EpochId epoch;
  OpKey op;
  std::uint64_t sends = 0;
  bool operator==(const Flush&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("epoch", self.epoch);
    visit("op", self.op);
    visit("sends", self.sends);
  }
};

struct Flushed {
  static constexpr std::string_view kName = "flushed";
  GroupId group;
  EpochId epoch;
  OpKey op;
  std::uint64_t received = 0;  // all sends below this number are received
  bool operator==(const Flushed&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("epoch", self.epoch);
    visit("op", self.op);
    visit("received", self.received);
  }
};

/// Shared state: send me bytes [offset, offset + bytes) of your item `item` (0: the manifest; bytes
/// 0: all of it) of the snapshot with this digest. Answered by PullReply, then by segments.
struct Pull {
  static constexpr std::string_view kName = "pull";
  GroupId group;
  std::uint64_t request = 0;
  Digest digest{};
  std::uint32_t item = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool operator==(const Pull&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("request", self.request);
    visit("digest", self.digest);
    visit("item", self.item);
    visit("offset", self.offset);
    visit("bytes", self.bytes);
  }
};

struct PullReply {
  static constexpr std::string_view kName = "pull_reply";
  GroupId group;
  std::uint64_t request = 0;
  Error error;              // closed: it does not hold that snapshot (any more)
  std::uint64_t bytes = 0;  // how many follow
  bool operator==(const PullReply&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("request", self.request);
    visit("error", self.error);
    visit("bytes", self.bytes);
  }
};

using PeerToMaster = std::variant<Hello, Ready, Cannot, Suspect, Relinked, Done, Mismatch, Expired,
                                  Vote, Knock, Leave, Bye, Heartbeat, StoreRequest>;
using MasterToPeer = std::variant<Welcome, Propose, Start, Commit, FailOp, Evicted, Left, Refuse,
                                  Hold, Heartbeat, StoreReply>;
using PeerToPeer = std::variant<Farewell, GroupFailed, OpFailed, Grant, Want, AskIssued, TellIssued,
                                Announce, Accept, Withdraw, Flush, Flushed, Pull, PullReply>;

}  // namespace pccl
