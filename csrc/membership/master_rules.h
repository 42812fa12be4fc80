// The parts of the master's decisions: who counts, whose state is right, what is committed, which
// epoch is next. Internal to the master's core (master.cpp has the events); pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "membership/master.h"
#include "membership/members.h"

namespace pccl::master {

/// The register's epoch; null where no run is founded (or the last one is over).
[[nodiscard]] const Epoch* own(const State& s);
[[nodiscard]] bool is_own_member(const State& s, PeerId peer);
/// Null where the peer is no member of the register's epoch.
[[nodiscard]] Seat* seat_of(State& s, PeerId peer);
[[nodiscard]] const Seat* seat_of(const State& s, PeerId peer);
/// A member whose connection is gone and that may come back.
[[nodiscard]] bool is_awaited(const State& s, PeerId peer);
[[nodiscard]] bool is_awaited(const State& s);  // any
/// A member that may not go on.
[[nodiscard]] bool is_expelled(const State& s, PeerId peer);
/// The timer of its absence is stopped, if it runs.
void await_no_more(State& s, PeerId peer, Actions& out);
/// Some members of the register's epoch may still come back. (Not waited for: who would have to go
/// anyway, because it cannot reach one that is here.)
[[nodiscard]] bool awaits(const State& s);

// ------------------------------------------------------------------------- who counts
// (admission.cpp)

/// Names a replica: ranks of different attempts never make one.
[[nodiscard]] std::pair<std::string, std::uint64_t> replica_of(const Member& member);
[[nodiscard]] std::size_t replicas(const std::vector<Member>& members);
/// Those whose replica is complete among them, in the same order.
[[nodiscard]] std::vector<Member> whole(std::vector<Member> members);
/// Who may go on without being admitted: any whole replica of the register's epoch.
[[nodiscard]] std::vector<Member> survivors(const State& s);
/// The same, where they lie in the register's epoch. `must_go`: excluded(s).
[[nodiscard]] std::vector<const Member*> going_on(const State& s, const std::set<PeerId>& must_go);
/// Newcomers that may be admitted, whole replicas only, in order of arrival: no more than there is
/// room for, and none of a replica that was lost too often lately.
[[nodiscard]] std::vector<Member> door(const State& s);
/// Seconds that a replica has still to wait at the door, because it was lost three times or more
/// within ten minutes: 30 s, twice as long for each further loss, 5 minutes at most.
[[nodiscard]] std::uint64_t must_wait_s(const State& s, const Member& member);
/// A member was lost, not let go. Counted where its replica has a name that it will come back with.
void count_loss(State& s, const Member& member);
/// Tells who waits at the door without need to hurry why, once.
void explain_door(State& s, Actions& out);
/// Newcomers whose replica lacks ranks, and which: they wait for them, however long it takes.
[[nodiscard]] std::map<PeerId, std::string> incomplete(const State& s);
/// Is the answer to "does the boundary that ends this step vote?" yes for a step that is decided
/// now?
[[nodiscard]] bool wants_boundary(const State& s, const std::vector<PeerId>& pinned,
                                  const std::vector<Member>& members);
/// What speaks against a Hello: code none if nothing does.
[[nodiscard]] Error check_hello(const State& s, const Hello& hello);

// ------------------------------------------------------ members that cannot reach each other
// (reachability.cpp)

/// Who has to go because some that are here cannot reach each other, also not over a third member:
/// newcomers before members, then the fewest replicas.
[[nodiscard]] std::set<PeerId> excluded(const State& s);
/// Two that cannot reach each other, by age: the higher the younger.
using Pair = std::pair<std::uint64_t, std::uint64_t>;
/// The fewest of which each pair has one; among equals those that cannot reach the most others,
/// then the youngest. Exact to ten of them, above that nearly.
[[nodiscard]] std::set<std::uint64_t> smallest_cover(const std::vector<Pair>& pairs);

// (relays.cpp)

/// Is there one among these over whom the two may reach each other?
[[nodiscard]] bool has_relay(const State& s, PeerId p, PeerId q, const std::vector<PeerId>& among);
/// For each two of `members` that cannot reach each other over whom they go on. None for two that
/// have nobody.
[[nodiscard]] std::vector<Relay> relays(const State& s, const std::vector<Member>& members);
/// The two have tried: over this one they do not reach each other. Of nobody: there is no other.
void of_no_use(State& s, PeerId p, PeerId q, PeerId via);
/// It may try again whom it can reach. True if there was somebody whom it could not.
bool reaches_again(State& s, PeerId p);
/// Two that went on over a third, and of which one would have to go because nobody is left to pass
/// their data on, try without, once: what kept them apart may be long over. Returns who is excluded
/// all the same.
[[nodiscard]] std::set<PeerId> let_try_again(State& s);
/// What was tried by pairs that are not known any more to be apart.
void forget_reached(State& s);
/// What the register's epoch says of who cannot reach whom: for a master that takes over.
void recall_relays(State& s);

// ------------------------------------------------------------------------------ who leaves
// (leaving.cpp)

/// Of `members`, all ranks of those replicas of which one wants to leave.
[[nodiscard]] std::set<PeerId> who_leaves(const State& s, const std::vector<Member>& members);
/// The same, of those that need not wait for the boundary.
[[nodiscard]] std::set<PeerId> who_leaves_at_once(const State& s,
                                                  const std::vector<Member>& members);
/// A member of the running epoch says what it has issued. True: all are quiet, `reconsider`.
[[nodiscard]] bool hear_issued(State& s, PeerId peer, OpKey issued);
/// What was said before of who has issued nothing counts no more.
void be_heard_anew(State& s);
/// May those who wish to leave at once be proposed to be gone? Then they are.
[[nodiscard]] bool try_at_once(State& s);
/// A member of the proposal is not calm: the same members go on, and the boundary decides.
void give_up_at_once(State& s);

// ------------------------------------------------------------------------ who is late
// (lateness.cpp)

/// Why this member, which has just been heard of, has to go: it has not come to an operation or to
/// a boundary for which the time of others is over. Empty: it has not.
[[nodiscard]] std::string why_late(const State& s, PeerId p, const Report& report);
/// The time of the operation `op` of this member is over, or of the boundary at which it stands.
void time_is_over(State& s, PeerId p, OpKey op);

// ------------------------------------------------------------------- whose state is right
// (election.cpp)

/// The state that all hold when the next epoch starts, by peer group; empty if its boundary has
/// none.
[[nodiscard]] std::map<std::uint32_t, SyncPlan> elect(const State& s,
                                                      const std::vector<Member>& voters);

// ----------------------------------------------------------------------- what is committed
// (verdict.cpp)

struct Judgement {
  std::map<std::uint32_t, OpSet> committed;  // by peer group
  std::set<std::uint64_t> commit_steps;  // steps of which something is committed, in any peer group
  std::optional<Failure> failure;
  std::map<std::uint64_t, bool> flags;
  std::uint64_t passed = 0;
  std::vector<PeerId> pinned;
};

/// The answers of a verdict that this peer group needs: where there are more than a message takes,
/// from the step on at which its slowest member stands. (The next ones come with the commits.)
[[nodiscard]] std::vector<StepFlag> flags_for(const State& s, const Judgement& verdict,
                                              const std::vector<PeerId>& mates);

/// The verdict on what was in flight, from the reports of the members that go on.
[[nodiscard]] Judgement judge(const State& s, const Epoch& epoch);

// ---------------------------------------------------------------- what a report cannot say
// (reports.cpp)

/// A member that has said what cannot be, and why it cannot.
struct Lie {
  PeerId peer;
  std::string why;
};
/// What is wrong with a report, or a message, in itself; empty: nothing.
[[nodiscard]] std::string contradiction(const Report& report);
[[nodiscard]] std::string contradiction(const PeerToMaster& message);
/// Of these members, which are all ready: one that reports a step, or a commit, of which at least
/// one other member would have to know, and none does.
[[nodiscard]] std::optional<Lie> find_lie(const State& s, const std::vector<Member>& members);
/// One whose operations make the verdict longer than a Start may be.
[[nodiscard]] std::optional<Lie> find_excess(const State& s, const std::vector<Member>& members,
                                             const Judgement& verdict);
/// The member that has said `done` most often for what its mates have not done, if all together
/// have said so more often than operations can be in flight.
[[nodiscard]] std::optional<PeerId> find_hoarder(const State& s);

// -------------------------------------------------------------------------- which epoch
// (epochs.cpp)

/// Is the epoch in force, or the one proposed, still right? If not, proposes another.
void reconsider(State& s, Actions& out);
/// Some member that is here has not voted. Cheap: it is asked at each vote.
[[nodiscard]] bool somebody_has_not_voted(State& s);
/// The register holds the proposal, after `before`: it is in force.
void start(State& s, const std::optional<Epoch>& before, Actions& out);
/// All members of the proposal are ready: writes it to the register.
void write_proposal(State& s, Actions& out);
void write_over(State& s, Actions& out);
/// The register says that the run is over.
void end_run(State& s, const std::vector<Member>& before, Actions& out);
/// Caches that follow from the register's epoch.
void index_members(State& s);
/// --adopt: the newest epoch that those who are here have started becomes the register's. Before
/// `patience_over` only if all its members are here.
void adopt(State& s, bool patience_over, Actions& out);
/// The register holds the adopted epoch.
void adopted(State& s, Actions& out);

// ------------------------------------------------------------------------------------- both

void send(const State& s, PeerId peer, MasterToPeer message, Actions& out);
/// To those of `peers` that are connected.
void send_all(const State& s, const std::vector<PeerId>& peers, MasterToPeer message, Actions& out);
/// The members of each peer group, in rank order.
[[nodiscard]] std::map<std::uint32_t, std::vector<PeerId>> by_group(
    const std::vector<Member>& members);
[[nodiscard]] Welcome welcome(const State& s, PeerId peer);
/// Takes it out of all that counts; a member that was awaited is awaited no more.
void forget(State& s, PeerId peer, const std::string& why, Actions& out);
/// Tells it that the run goes on without it, and closes its connection.
void evict(State& s, PeerId peer, const std::string& why, Actions& out);
/// The same, and a member does not go on if it comes back before the next Start.
void expel(State& s, PeerId peer, const std::string& why, Actions& out);
/// Of everybody known: "rank 2 (00..1f)" where it is a member.
[[nodiscard]] std::string name(const State& s, PeerId peer);

}  // namespace pccl::master
