// A group whose members never change: torchrun, new_group. One epoch, no master, no votes. When a
// member is lost, every pending and later operation fails at all other members. When a member
// leaves in good order, the operations fail that this member has not completed.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/limits.h"
#include "engine/closed_groups.h"
#include "engine/group.h"

namespace pccl {

/// In an AskIssued, as `op`: the sender wants no more than a sign of life.
inline constexpr OpKey kSignOfLife{~0ULL, ~0ULL};

class FixedGroup : public Group {
 public:
  /// `kind`: not elastic.
  FixedGroup(EngineContext& context, GroupId id, const std::string& name,
             std::vector<Handle> members, std::int32_t rank, std::uint64_t timeout_ms,
             std::shared_ptr<Ticket> connected, GroupKind kind);
  ~FixedGroup() override;

  [[nodiscard]] const std::vector<Handle>& handles() const { return handles_; }
  [[nodiscard]] bool of_run() const { return kind_ == GroupKind::of_run; }
  /// The run goes on without this peer: fails the group if it is not made yet. (Later a loss is
  /// noticed by the link, and a member that has left the run may still finish its operations.)
  void lost_by_run(PeerId peer);
  /// Says that this process is no member of the run any more: fails the group if it is not made
  /// yet.
  void run_over(const Error& error);

  /// Ends the making of a group that is not made yet, for a reason of this process's own.
  void give_up_making(const Error& error);

  /// Just before `close`: what the other members may still ask about. Its members are those that
  /// have not closed the group; none: nobody needs an answer.
  [[nodiscard]] ClosedGroup last_words();

  /// Opens the links. `connected` is completed when all members have said that all their links are
  /// up (of those that have left, not), or with an error that names the members that could not be
  /// reached or did not make the group.
  void connect();
  void link_up(PeerId peer) override;
  void link_down(PeerId peer, const std::string& reason, Down how) override;
  void control(PeerId peer, const PeerToPeer& message) override;
  void tick(std::uint64_t elapsed_ms) override;
  void close() override;
  void abort(const std::string& why) override;
  void fail(Error error) override;
  [[nodiscard]] GroupView view() const override;
  [[nodiscard]] bool needs(PeerId peer) const override;

 protected:
  void on(PeerId from, const Connected& m) override;
  void on(PeerId from, const Farewell& m) override;
  void on(PeerId from, const GroupFailed& m) override;
  void on(PeerId from, const OpFailed& m) override;
  void on(PeerId from, const TellIssued& m) override;
  void end_waits(const Error& error) override;
  void op_complete(Pending& pending) override;
  void op_mismatch(OpKey op, PeerId from, const std::string& text) override;
  void op_timed_out(Pending& pending) override;
  void op_starved(Pending& pending, const Error& error) override;
  void issue(OpRequest request, std::shared_ptr<Ticket> ticket) override;
  void issue_message(OpRequest request, std::shared_ptr<Ticket> ticket) override;
  [[nodiscard]] OpKey next_key() const override { return OpKey{0, next_}; }

 private:
  struct Question {  // after a time-out: which ranks have not issued it?
    std::uint64_t waited_ms = 0;
    std::set<PeerId> unanswered;
    std::set<PeerId> missing;
  };
  /// `lost`: the peer whose loss it is.
  void fail_group(Error error, bool tell, PeerId lost = {});
  [[nodiscard]] std::optional<Trips> trips() const;
  /// All members but this one and those that have left.
  void tell_others(const PeerToPeer& message);
  /// The link to the peer is up, or the peer has left.
  void no_longer_awaited(PeerId peer);
  [[nodiscard]] bool dials_again(PeerId peer);
  void links_may_be_up();
  void all_may_be_connected();
  void now_connected();
  [[nodiscard]] std::string text_of_sites() const;  // for the log
  void look_at_wait(std::uint64_t elapsed_ms);
  [[nodiscard]] Error lost(PeerId peer, const std::string& reason) const;
  enum class Tell : std::uint8_t { nobody, others, others_late };
  void fail_op(OpKey op, Error error, Tell tell);
  void fail_late(OpKey op, Error error);
  void known_to_fail(OpKey op);
  [[nodiscard]] bool refuses(OpKind kind, const std::shared_ptr<Ticket>& ticket) const;
  void answer(OpKey op, Question& question);
  void look_for_life(std::uint64_t elapsed_ms);
  [[nodiscard]] Error departure(PeerId peer) const;
  [[nodiscard]] std::optional<Error> departure(OpKey key) const;
  void fail_departed();
  void fail_short_of_data();

  std::vector<Handle> handles_;
  std::int32_t rank_;
  std::uint64_t connect_timeout_ms_;
  std::shared_ptr<Ticket> connected_;
  std::set<PeerId> awaited_;        // links that are not up yet, while connecting
  std::set<PeerId> dialled_again_;  // links that were lost meanwhile
  /// Of the members that have all their links: what they have said.
  std::map<PeerId, std::optional<Trips>> trips_;
  std::uint64_t waited_ms_ = 0;  // while connecting
  std::uint64_t say_waiting_ms_ = kSayWaitingMs;
  /// Members that have left in good order -> the first operation that the member has not completed.
  std::map<PeerId, OpKey> departed_;
  std::map<PeerId, Error> gone_;       // departed members whose links have ended since
  std::map<OpKey, Error> failed_ops_;  // failed by another rank before this one issued them
  /// The newest operations whose failure this rank's program knows, or hears of by its next call.
  std::set<OpKey> failed_here_;
  Error late_failure_;  // for the next operation
  std::map<OpKey, Question> questions_;
  std::set<PeerId> answered_;                  // have told anything that they were asked
  std::map<PeerId, std::uint64_t> silent_ms_;  // time since the peer was asked for a sign of life
  std::uint64_t since_probe_ms_ = 0;
  std::uint64_t next_ = 0;
  Error failure_;
  bool closed_ = false;
};

}  // namespace pccl
