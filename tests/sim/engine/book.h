// The reference: what was put into each operation and each message, and what must have come out.
// It knows who contributed, and nothing of how; every bit is computed again.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "engine/engine.h"
#include "memory.h"
#include "processes.h"

namespace pccl::sim {

using Memory = std::vector<std::byte, Fenced<std::byte>>;

/// Bytes that follow from a number; small integers in the type.
void fill(Memory& to, std::uint64_t salt, DType dtype);
[[nodiscard]] Memory filled(std::size_t bytes, std::uint64_t salt, DType dtype);

/// One collective call of one member.
struct Call {
  GroupId group;  // the elastic one, or one that was made from it
  OpDescriptor descriptor;
  std::uint64_t salt = 0;
  std::vector<PeerId> numbering;  // as its caller saw it
  std::int32_t rank = 0;
  std::vector<Memory> inputs;
  std::vector<Memory> outputs;
  std::vector<Memory> before;  // of the outputs
  bool in_place = false;       // the output is the input
  std::shared_ptr<Ticket> ticket;
  int completions = 0;
  [[nodiscard]] std::uint64_t salt_of(std::size_t buffer) const { return salt * 1000 + buffer; }
};

/// What goes wrong in a fixed group as its members have planned it: from where on.
struct Expected {
  std::uint64_t odd_at = ~0ULL;     // one of them calls something else there, once
  std::uint64_t leaves_at = ~0ULL;  // one of them calls nothing from there on
};

/// One send or one receive.
struct Message {
  GroupId group;
  PeerId from;  // none: from any rank
  PeerId to;
  std::uint64_t tag = 0;
  Memory bytes;
  Memory before;  // of a receive
  std::shared_ptr<Ticket> ticket;
  std::uint64_t posted_ms = 0;
  int completions = 0;
  bool unmet = false;           // perhaps nobody posts its other side
  std::vector<PeerId> members;  // of its group
  std::uint64_t place = 0;      // in a group: collectives called before it, less one

  // Of one that has ended.
  std::uint64_t ended_ms = 0;
  EpochId epoch;                      // in force at its end: the one that it counts to
  const Message* received = nullptr;  // of a receive: what it has got; of a send: by which receive
};

class Book {
 public:
  /// A member is in its first epoch, with these: in their run, or in a new one, whose steps and
  /// operations are counted anew.
  void joined(PeerId who, const std::vector<PeerId>& members);
  void issued(PeerId by, std::shared_ptr<Call> call) { calls_[by].push_back(std::move(call)); }
  void ended(PeerId at, const Call& call);

  void sent(std::shared_ptr<Message> message);
  void receives(std::shared_ptr<Message> message);
  void send_ended(const Message& send);
  void receive_ended(Message& receive);
  /// At the end of a walk: `lived` of each process, true if it lived to the end.
  void close(const std::map<PeerId, bool>& lived) const;

  void expects(GroupId group, const Expected& expected) { expected_[group] = expected; }
  /// A fault that may end groups which these are members of; of none: groups of anybody.
  void harmed(const std::vector<PeerId>& peers);
  /// What a group without epochs of its own fails needs a reason: a call, with its place among the
  /// collectives, or the group itself.
  void group_failed(GroupId group, const std::vector<PeerId>& members, std::uint64_t index,
                    const std::string& what, const Error& error);
  /// A member of the run has not made a group of the run.
  void not_made(const std::vector<PeerId>& members, const Error& error);

  /// All members that enter a step hold the same state.
  void entered(PeerId who, std::uint64_t step, std::uint64_t state, const std::string& what);

  /// Nothing is asked of what this one has, and of what sound members have by it.
  PeerId liar;
  /// The program of a member is over. `why`: it was evicted.
  void over(PeerId who, const std::string& why);

  std::uint64_t bits_checked = 0;
  std::uint64_t calls_checked = 0;
  std::uint64_t messages_checked = 0;
  bool faults = true;  // without any no collective fails
  /// With a liar and no other fault: sound members whose programs are not over.
  std::uint64_t sound = 0;
  std::uint64_t done = 0;               // members that have done all their steps
  std::map<GroupId, std::size_t> made;  // fixed groups: how many have made it, or failed to

 private:
  [[nodiscard]] const Call& call_of(PeerId peer, const Call& like) const;
  [[nodiscard]] bool waits_for_another_root() const;
  [[nodiscard]] Memory expected(const Call& call, std::size_t output,
                                const std::vector<PeerId>& contributors) const;

  std::map<PeerId, std::deque<std::shared_ptr<Call>>> calls_;
  std::map<PeerId, std::uint64_t> runs_;
  std::uint64_t last_run_ = 0;
  using Operation = std::pair<std::uint64_t, OpKey>;  // of a run
  std::map<Operation, std::vector<PeerId>> committed_;
  std::map<Operation, std::set<PeerId>> failed_;  // and at whom
  // By run and step.
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::pair<std::uint64_t, PeerId>> states_;
  /// Of one receiver and tag, in the order in which they were posted.
  struct Mailbox {
    std::vector<std::shared_ptr<Message>> sends;
    std::vector<std::shared_ptr<Message>> receives;
  };
  using Address = std::tuple<GroupId, PeerId, std::uint64_t>;  // and tag
  [[nodiscard]] Mailbox& box_of(const Message& message) {
    return mail_[{message.group, message.to, message.tag}];
  }
  [[nodiscard]] bool in_vain(const Message& message) const;
  [[nodiscard]] bool lies(PeerId peer) const { return liar != PeerId{} && peer == liar; }
  [[nodiscard]] bool has_liar(const std::vector<PeerId>& peers) const;
  void check_order(const Mailbox& box) const;
  void check_skipped(const Mailbox& box) const;
  void check_lost(const Mailbox& box, const std::map<PeerId, bool>& lived) const;
  void check_lost_of_group(const Mailbox& box) const;
  std::map<Address, Mailbox> mail_;
  std::set<GroupId> failed_groups_;
  std::map<GroupId, Expected> expected_;
  std::set<PeerId> harmed_;
  bool all_harmed_ = false;
  bool parted_ = false;  // see `over`
};

}  // namespace pccl::sim
