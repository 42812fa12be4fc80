// Finds the members at fault if the oldest operation of an elastic group does not move. A member
// that has not issued the operation is late and not at fault. When all members have issued it, and
// no segment has moved for long enough, a member is at fault that owes data and does not itself
// wait at an earlier turn than that data's (Step::turn); so is a member that does not answer. If
// the link from a member a to a member b swallows data, b finds a at fault, and no other member
// finds any (tests/cpp/engine/blame_test.cpp). Pure: the caller reports what it sees, and is told
// what to do.
//
// A member may lie: say for ever that it has not issued the operation, or that it waits at an
// earlier turn, or send what moves nothing. The master evicts one that has not issued it at the
// time-out of the operation, and in an epoch of three or more 30 minutes later at the latest
// (membership/lateness.cpp). What a member says longer than that is not believed.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "base/ids.h"
#include "engine/operation_table.h"
#include "wire/messages.h"

namespace pccl {

class Stall {
 public:
  struct Fault {
    PeerId peer;
    bool again = false;  // the peer was at fault before, and no operation has succeeded since
  };
  struct Findings {
    const Pending* operation = nullptr;  // the operation that `ask` and `faults` are about
    std::vector<PeerId> ask;             // members to ask what they have issued and wait for
    std::vector<Fault> faults;           // members at fault; their time begins anew
  };
  struct Now {
    EpochId epoch;  // the running one
    PeerId self;
    std::uint64_t received_bytes = 0;  // grows while any link moves data
    std::uint64_t elapsed_ms = 0;      // since the last tick
    std::uint64_t limit_ms = 0;
    bool of_two = false;  // the epoch has two members: the master takes the word of one of them
  };
  /// Called once a tick while an epoch runs: looks at the oldest operation that runs, or at a
  /// barrier that waits to hear that messages have been received (barrier.cpp). Operations behind
  /// it are watched when it is done.
  [[nodiscard]] Findings watch(const OperationTable& operations, const Now& now);

  enum class Verdict : std::uint8_t {
    moves,   // the operation moves, or it is too early to tell
    ask,     // ask all other members what they have issued and wait for
    stalled  // the members in `owes` are at fault
  };

  /// What is known of one operation.
  struct Seen {
    EpochId epoch;
    OpKey op;
    std::uint64_t progress = 0;    // grows with the operation
    std::uint64_t elsewhere = 0;   // grows while any link moves data
    std::uint64_t timeout_ms = 0;  // of the operation; 0: none
    bool of_two = false;           // the epoch has two members
    /// The turn at which this process waits, as it says in TellIssued.
    std::uint32_t waits_at = TellIssued::kNoStep;
  };
  /// Looks at one operation. `others`: its contributors without this peer.
  Verdict look(const Seen& seen, const std::vector<PeerId>& others, std::uint64_t elapsed_ms,
               std::uint64_t limit_ms);
  void told(PeerId peer, const TellIssued& said);
  /// Has this peer said that it has not issued `op` yet?
  [[nodiscard]] bool late(OpKey op, PeerId peer) const;
  /// Has it said that it is in a later step, and does not have `op` under way?
  [[nodiscard]] bool past(OpKey op, PeerId peer) const;
  /// Is this peer at fault, of which data is missing at `turn`? Yes if it is silent, or does not
  /// wait at an earlier turn itself.
  [[nodiscard]] bool owes(PeerId peer, std::uint32_t turn) const;
  /// Notes that this peer is at fault. True: for the first time since an operation succeeded.
  [[nodiscard]] bool first_time(PeerId peer) { return found_.insert(peer).second; }
  /// The caller has acted on a result: the time begins anew.
  void acted();
  /// An operation has succeeded.
  void forget() { found_.clear(); }

 private:
  [[nodiscard]] static bool is_held_back(const Pending& pending);

  /// Have the others said for too long why nothing moves?
  [[nodiscard]] bool doubts() const;

  struct Answer {
    std::uint64_t age_ms = 0;  // since it came, or since nothing moves
    bool said = false;         // something about it
    bool issued = false;
    std::uint32_t waits_at = 0;
    bool past = false;  // it is in a later step
  };
  Seen seen_;
  std::uint64_t limit_ms_ = 0;
  std::uint64_t watched_ms_ = 0;  // since the operation itself has moved
  std::uint64_t stalled_ms_ = 0;  // since all have issued it
  std::uint64_t asked_ms_ = 0;
  std::map<PeerId, Answer> answers_;
  std::set<PeerId> found_;
};

}  // namespace pccl
