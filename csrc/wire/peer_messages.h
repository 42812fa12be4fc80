// Every message between two peers, as a plain struct with its fields; those of a peer and its
// master are in messages.h, which says how they are described.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

#include "base/error.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/protocol.h"
#include "base/trips.h"
#include "wire/parts.h"

namespace pccl {

/// Fixed groups: the sender has links to all other members. All say so before
/// they begin, since all have to choose how data go by the same trips.
struct Connected {
  static constexpr std::string_view kName = "connected";
  GroupId group;
  std::optional<Trips> trips = {};  // of its links; none: it reaches a member over a third one
  bool operator==(const Connected&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("trips", self.trips);
  }
};

/// Fixed groups: the sender leaves `group` in good order. It has completed all operations before
/// `finished`, and has sent all data that other ranks need from it for these.
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

/// Fixed groups: at the sender the group has failed, with this error; it fails at the receiver too.
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
  bool late = false;  // `op` fails instead of an earlier operation that the sender had completed
  bool operator==(const OpFailed&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("op", self.op);
    visit("error", self.error, kFailureCodeMin);
    visit("late", self.late);
  }
};

/// The sender has issued every collective of `group` before `issued`: the receiver may send
/// segments of these without limit.
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

/// The sender holds segments of `op` back (kUngrantedBytesMax). The receiver answers with Grant
/// when it has issued `op`.
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

/// The sender waits in `op`, which it has issued as described here (numbers of base/types.h and
/// base/quantisation.h), and asks whether the receiver has issued the same. Answered by TellIssued.
struct AskIssued {
  static constexpr std::string_view kName = "ask_issued";
  GroupId group;
  OpKey op;
  std::uint32_t kind = 0;
  std::uint32_t reduce = 0;
  std::uint32_t dtype = 0;
  std::int64_t root = -1;
  std::uint64_t count = 0;
  std::uint32_t quantisation = 0;
  bool operator==(const AskIssued&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("op", self.op);
    visit("kind", self.kind);
    visit("reduce", self.reduce);
    visit("dtype", self.dtype);
    visit("root", self.root);
    visit("count", self.count);
    visit("quantisation", self.quantisation);
  }
};

/// Answer to AskIssued.
struct TellIssued {
  static constexpr std::string_view kName = "tell_issued";
  GroupId group;
  OpKey op;
  OpKey issued;  // one past the newest operation that the sender has issued
  /// The smallest turn (Step::turn) at which the sender waits in `op`; kNoStep: it waits for no
  /// data; 0: the operation does not run.
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

/// Point-to-point: the sender has called a send of `bytes` (number `index` with this tag from the
/// sender to the receiver). The segments follow when the receiver has answered Accept. A small send
/// comes as a segment at once, without Announce.
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

/// Point-to-point: the receive for the announced send is posted (`complete` false), or complete
/// (true).
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

/// Point-to-point: the sender has given an announced send up; no more segments of it come.
struct Withdraw {
  static constexpr std::string_view kName = "withdraw";
  GroupId group;
  EpochId epoch;
  std::uint64_t tag = 0;
  std::uint64_t index = 0;
  Error error;  // with which the receive fails
  bool operator==(const Withdraw&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("epoch", self.epoch);
    visit("tag", self.tag);
    visit("index", self.index);
    visit("error", self.error, kFailureCodeMin);
  }
};

/// Barriers: the sender waits at barrier `op`, and has called `sends` sends to the receiver before
/// that barrier. The receiver answers with Flushed when it has called the barrier too, and when all
/// receives that it had called before the barrier, and that match one of these sends, are complete.
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

/// Answer to Flush.
struct Flushed {
  static constexpr std::string_view kName = "flushed";
  GroupId group;
  EpochId epoch;
  OpKey op;
  std::uint64_t received = 0;  // the sender of Flushed has received all sends below this number
  bool operator==(const Flushed&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("epoch", self.epoch);
    visit("op", self.op);
    visit("received", self.received);
  }
};

/// Shared state: asks for bytes [offset, offset + bytes) of item `item` (0: the manifest) of the
/// receiver's snapshot with this digest; `bytes` 0: the whole item. Answered by PullReply, then by
/// segments.
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

/// Answer to Pull; `bytes` bytes follow in segments.
struct PullReply {
  static constexpr std::string_view kName = "pull_reply";
  GroupId group;
  std::uint64_t request = 0;
  Error error;  // closed: the sender does not hold that snapshot (any more)
  std::uint64_t bytes = 0;
  bool operator==(const PullReply&) const = default;

  static void fields(auto& self, auto&& visit) {
    visit("group", self.group);
    visit("request", self.request);
    visit("error", self.error);
    visit("bytes", self.bytes);
  }
};

using PeerToPeer =
    std::variant<Connected, Farewell, GroupFailed, OpFailed, Grant, Want, AskIssued, TellIssued,
                 Announce, Accept, Withdraw, Flush, Flushed, Pull, PullReply>;

}  // namespace pccl
