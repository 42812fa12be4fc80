// The parts of the master's decisions: which peers may be members, which member's state is right,
// which operations are committed, which epoch is next. Internal to the master's core (master.cpp
// has the events); pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "membership/master.h"
#include "membership/members.h"

namespace pccl::master {

/// The register's epoch; null if no run is founded, or if the last run is over.
[[nodiscard]] const Epoch* own(const State& s);
/// Null if the peer is no member of the register's epoch.
[[nodiscard]] Seat* seat_of(State& s, PeerId peer);
[[nodiscard]] const Seat* seat_of(const State& s, PeerId peer);
/// Is this a member without connection that may come back?
[[nodiscard]] bool is_awaited(const State& s, PeerId peer);
[[nodiscard]] bool is_awaited(const State& s);  // is any member awaited?
/// Is this a member that may not go on?
[[nodiscard]] bool is_expelled(const State& s, PeerId peer);
/// Stops the timer of the member's absence, if it runs.
void await_no_more(State& s, PeerId peer, Actions& out);
/// Is there a member of the register's epoch that may still come back? A member that would have to
/// go anyway, because it cannot reach a connected one, does not count.
[[nodiscard]] bool awaits(const State& s);

// ------------------------------------------------------------- which peers may be members
// (admission.cpp)

/// The key of a replica: ranks of different attempts never form one replica.
[[nodiscard]] std::pair<std::string, std::uint64_t> replica_of(const Member& member);
[[nodiscard]] std::size_t replicas(const std::vector<Member>& members);
/// The members whose replica is complete in the list, in the same order.
[[nodiscard]] std::vector<Member> whole(std::vector<Member> members);
/// The members that may go on without being admitted: whole replicas of the register's epoch.
[[nodiscard]] std::vector<Member> survivors(const State& s);
/// The members of survivors(s), as the register's epoch has them. `must_go`: excluded(s).
[[nodiscard]] std::vector<const Member*> going_on(const State& s, const std::set<PeerId>& must_go);
/// The newcomers that may be admitted, in order of arrival: whole replicas only, no more than there
/// is room for, and none of a replica that was lost too often lately.
[[nodiscard]] std::vector<Member> door(const State& s);
/// Seconds that a replica has still to wait at the door, because it was lost three times or more
/// within ten minutes: 30 s, twice as long for each further loss, 5 minutes at most.
[[nodiscard]] std::uint64_t must_wait_s(const State& s, const Member& member);
/// Counts the loss (not the leaving) of a member, if its replica has a name under which it comes
/// back.
void count_loss(State& s, const Member& member);
/// Logs once for each newcomer at the door that the run is full, or that its replica was lost too
/// often lately. (A newcomer that waits for its replica's ranks or for the boundary needs no line.)
void explain_door(State& s, Actions& out);
/// The newest epoch is the boundary that began the run's first step, or one that admitted
/// newcomers. The boundary after it compares the states of all: what programs keep outside the
/// shared state, and what makes their steps differ, shows there.
[[nodiscard]] bool compares_states(const Register& held);
/// If the question whether the boundary of a step votes is decided now: does it?
[[nodiscard]] bool wants_boundary(const State& s, const std::vector<PeerId>& pinned,
                                  const std::vector<Member>& members);

// ------------------------------------------------------- newcomers that are not ready in time
// (newcomers.cpp)

/// By what a newcomer is known beside its id: its token and its network; its id if neither is
/// known.
[[nodiscard]] std::string origin_name(const State& s, PeerId p);
/// A line about this process; of those about newcomers the server leaves some out (Say::origin).
[[nodiscard]] Say warning_of(const State& s, PeerId p, std::string text);
/// Seconds that newcomers of this peer's origin have still to wait at the door.
[[nodiscard]] std::uint64_t origin_waits_s(const State& s, PeerId p);
/// This newcomer could not be reached. Returns the seconds until its links are tried again.
std::uint64_t not_reached(State& s, PeerId newcomer, const std::string& why);
/// Time has passed. True: the proposal has waited too long for newcomers, and the next one is
/// without those that are not ready.
[[nodiscard]] bool give_up_newcomers(State& s, std::uint64_t elapsed_s, Actions& out);

// -------------------------------------------------- the state on its way (fetches.cpp)

/// Some seconds have passed since `look_at_beats`, while peers of the proposal were not ready.
void watch_fetches(const State& s, Fetches& fetches, std::uint64_t elapsed_s);
/// Heartbeats are compared with these the next time.
void look_at_beats(State& s);
/// The others have waited for these connected peers as long as they must: nothing has moved for
/// `still_s_max`, or less than must in all that time. A large state takes longer.
[[nodiscard]] bool waited_enough(const State& s, const Fetches& fetches,
                                 const std::vector<PeerId>& unready, std::uint64_t still_s_max);

// ------------------------------------------------------ links of newcomers, before a boundary
// (trials.cpp)

/// If peers have come or gone: begins and ends trials, and asks for the links that are missing. A
/// large run asks once a second: so the number of messages does not grow with that of newcomers.
void try_links(State& s, Actions& out);
/// This peer has connected anew, and knows of no link to try.
void forget_links(State& s, PeerId p);
/// The newcomers whose links are up, or known not to come up: they may be proposed.
[[nodiscard]] std::set<PeerId> tried(const State& s);
/// A peer says of links that they are up, or did not come up.
void hear_of_links(State& s, PeerId from, const Tried& m, Actions& out);
/// Gives up the newcomers that cannot be proposed because of links that did not come up: they wait,
/// and are tried again later.
void give_up_apart(State& s, Actions& out);
/// Time has passed. True: a trial has come to its end.
[[nodiscard]] bool trials_time_out(State& s, std::uint64_t elapsed_s, Actions& out);
/// For people: why this newcomer at the door is not proposed yet; empty: its links are tried.
[[nodiscard]] std::string why_tried(const State& s, PeerId p);

// ------------------------------------------------------ members that cannot reach each other
// (reachability.cpp)

/// The peers that have to go because connected peers cannot reach each other, also not over a third
/// member: newcomers before members, then the smallest number of replicas.
[[nodiscard]] std::set<PeerId> excluded(const State& s);
/// A peer says that it cannot reach another one: the two go on over a third member; if there is
/// none, one of the two has to go.
void cannot_reach(State& s, PeerId p, const Cannot& m, Actions& out);
/// Two replicas that cannot reach each other, as numbers by age: the higher number is the younger.
using Pair = std::pair<std::uint64_t, std::uint64_t>;
/// The smallest set that contains one of each pair; among equal sets that of the replicas which
/// cannot reach the most others, now and `before` (a number of others), then of the youngest. Exact
/// for up to ten replicas, an approximation above.
[[nodiscard]] std::set<std::uint64_t> smallest_cover(
    const std::vector<Pair>& pairs, const std::map<std::uint64_t, std::uint64_t>& before = {});
/// An epoch of `members` begins. Notes which of them could not reach a member of the epoch before
/// that has to go.
void remember_parted(State& s, const std::vector<Member>& before,
                     const std::vector<Member>& members);

// (unready.cpp)

/// Time has passed while a proposal stands. Expels members that are not ready for it after two
/// minutes without any progress. True: something has changed.
bool give_up_members(State& s, std::uint64_t elapsed_s, Actions& out);

// (restarts.cpp)

/// A link of `p` is back: it is given up as one that cannot be made, if that is too often.
void link_is_back(State& s, PeerId p, const Relinked& m, Actions& out);
/// Notes that a member of the running epoch has connected again. True: too often.
[[nodiscard]] bool connects_too_often(State& s, PeerId member);

// (relays.cpp)

/// May `p` and `q` reach each other over one of the members in `among`?
[[nodiscard]] bool has_relay(const State& s, PeerId p, PeerId q, const std::vector<PeerId>& among);
/// For each two of `members` that cannot reach each other the third member that passes their data
/// on; no entry if there is none.
[[nodiscard]] std::vector<Relay> relays(const State& s, const std::vector<Member>& members);
/// Notes that the two members do not reach each other over `via`.
void of_no_use(State& s, PeerId p, PeerId q, PeerId via);
/// Forgets all pairs with `p` that cannot reach each other, so that `p` tries again. True if there
/// was such a pair.
bool reaches_again(State& s, PeerId p);
/// Two members whose data a third member passed on, and of which one would have to go because no
/// third member is left, are asked once to connect to each other again: the obstacle may be gone.
/// Returns the members that are excluded nevertheless.
[[nodiscard]] std::set<PeerId> let_try_again(State& s);
/// Forgets of pairs which can reach each other again the third members that were tried, and why.
void forget_reached(State& s);
/// A line for the log for each relay that the epoch before, if there was one, had not.
[[nodiscard]] std::vector<std::string> new_relays(const Epoch* before, const Epoch& epoch);
/// Takes from the register's epoch which members cannot reach each other, for a master that takes
/// over.
void recall_relays(State& s);

// ------------------------------------------------------ founders that cannot reach each other
// (founding.cpp)

/// Which other peer `p` cannot reach, so that `p` or that peer has to go or to wait, and what
/// helps. Empty: there is none.
[[nodiscard]] std::string why_apart(const State& s, PeerId p);
/// The run is not founded yet. If founders cannot reach each other, tells them, once for each time
/// that they were proposed.
void hold_founders(State& s, Actions& out);
/// Another founder has come: those that wait may be told anew.
void founders_changed(State& s);
/// One more time in this second, if there were fewer than `times_max`. False: there were not.
[[nodiscard]] bool keeps_pace(Pace& pace, std::uint64_t now_s, std::uint64_t times_max);
/// May founders be proposed now? A proposal goes from all to all, so in a second there are few.
[[nodiscard]] bool may_propose_founders(State& s, std::size_t number);
/// Lets the founders that wait be proposed again when their time has come. True: it has.
[[nodiscard]] bool founders_try_again(State& s);

// -------------------------------------------------------------------- members that leave
// (leaving.cpp)

/// The members that leave at the next boundary: all ranks, among `members`, of each replica of
/// which a rank wants to leave.
[[nodiscard]] std::set<PeerId> who_leaves(const State& s, const std::vector<Member>& members);
/// The members that may leave before the next boundary: all ranks of each replica of which a rank
/// wants to leave at once.
[[nodiscard]] std::set<PeerId> who_leaves_at_once(const State& s,
                                                  const std::vector<Member>& members);
/// A member of the running epoch has said which operations it has issued. True: no member has
/// issued any, so `reconsider` has to follow.
[[nodiscard]] bool hear_issued(State& s, PeerId peer, OpKey issued);
/// Forgets which members have said that they have issued nothing.
void be_heard_anew(State& s);
/// Decides whether the next proposal is without the members that wish to leave at once (s.at_once).
[[nodiscard]] bool try_at_once(State& s);
/// A member of the proposal is not calm: the next proposal has all members, and those that wish to
/// leave do so at the boundary.
void give_up_at_once(State& s);

// ---------------------------------------------------------------- all members are gone
// (standstill.cpp)

/// "15 s", rounded up.
[[nodiscard]] std::string whole_seconds(std::uint64_t ms);
/// TimerKind::patience, or refound, begins.
void stand_still(State& s, TimerKind kind, Actions& out);
/// TimerKind::patience begins, if it does not run.
void be_patient(State& s, Actions& out);
/// No whole replica was here, and the first one is back: members of which nothing is known but that
/// they are not connected get TimerKind::patience too.
void wait_for_others(State& s, Actions& out);
/// The process of a member has ended. When those of all members have ended, the run waits for none.
void see_death(State& s, PeerId peer, Actions& out);
/// No member of the register's epoch can come back: all have left, or their end was seen.
[[nodiscard]] bool nobody_can_come_back(const State& s);
/// Names the members whose end was seen, if there are any.
void say_all_are_gone(const State& s, Actions& out);
/// While all members are away: tells newcomers, or this one, which members the run waits for, and
/// how long.
void tell_newcomers(State& s, Actions& out);
void tell_newcomer(State& s, PeerId peer, Actions& out);

// ---------------------------------------------------------------------- how a run is finished
// (ending.cpp)

/// Have all `voters`, which stand at one boundary, called finish there?
[[nodiscard]] bool all_finish(const State& s, const std::vector<Member>& voters);
/// Writes to the register that the run is finished.
void write_ending(State& s, const std::vector<Member>& voters, Actions& out);
/// Says of a run that the register calls finished: after which step and when it was finished, and
/// how to open it anew. `run`: the words for the run; log lines of several runs begin with its
/// name.
[[nodiscard]] std::string ending_text(const State& s, const std::string& run);
/// Tells a peer that the run is finished, and closes the peer's connection.
void turn_away(State& s, PeerId peer, Actions& out);

// --------------------------------------------------------------------- members that are late
// (lateness.cpp)

/// Why this member, whose message has just come, is evicted for lateness: the member has not called
/// an operation, or not come to a boundary, that has timed out at other members. Empty: no
/// lateness.
[[nodiscard]] std::string why_late(const State& s, PeerId p, const Report& report);
/// This member says that the operation `op`, or the boundary at which it stands, has timed out.
/// Returns why that cannot be true, so that the member has to go; empty: it may be.
[[nodiscard]] std::string time_is_over(State& s, PeerId p, OpKey op);
/// This member has completed `op`: it waits there no longer.
void time_is_not_over(State& s, PeerId p, OpKey op);

// ------------------------------------------------------------------- which state is right
// (election.cpp)

/// The state that all members hold when the next epoch starts, by peer group; empty if the boundary
/// has no shared state.
[[nodiscard]] std::map<std::uint32_t, SyncPlan> elect(const State& s,
                                                      const std::vector<Member>& voters);

// ----------------------------------------------------------------------- what is committed
// (verdict.cpp)

/// What an epoch divides its steps by; from one voted boundary to the next it stays.
struct Numbering {
  std::uint64_t passed = 0;    // the step that the last voted boundary began
  std::vector<PeerId> pinned;  // the members of that boundary, in rank order
};

/// The newest epoch that any of `alive` has started; none: EpochId{}.
[[nodiscard]] EpochId newest_started(const State& s, const std::vector<Member>& alive);

/// Members of the register's epoch that go on with those that have started `id`, the newest epoch
/// that any of `alive` has started. Where the register's epoch is a boundary that nobody has
/// started, those that it admits do not. If an older master wrote it, a member is who is named by
/// more than half of those that have started `id`.
[[nodiscard]] std::set<PeerId> members_of_started(const State& s, const std::vector<Member>& alive,
                                                  EpochId id);

/// The numbering in the newest epoch that a member of `epoch` has started. What members say counts
/// only where the register does not know.
[[nodiscard]] Numbering numbering_before(const State& s, const Epoch& epoch);
/// The numbering of `epoch`, for the register: after a voted boundary that of its own members, else
/// that of before.
[[nodiscard]] Numbering numbering_of(const State& s, const Epoch& epoch);

struct Judgement {
  std::map<std::uint32_t, OpSet> committed;  // by peer group
  std::set<std::uint64_t> commit_steps;      // steps with a committed operation, in any peer group
  std::optional<Failure> failure;
  std::map<std::uint64_t, bool> flags;
  std::uint64_t passed = 0;
  std::vector<PeerId> pinned;
};

/// The part of a verdict that this peer group needs. If that is more than fits into a message: from
/// the step of its slowest member on; the rest comes with the commits.
[[nodiscard]] std::vector<StepFlag> flags_for(const State& s, const Judgement& verdict,
                                              const std::vector<PeerId>& mates);

/// The verdict on the operations in flight, from the reports of the members that go on.
[[nodiscard]] Judgement judge(const State& s, const Epoch& epoch, Numbering numbering);

inline constexpr std::uint64_t kStepsApartMax = 1U << 16;  // of the members of a run

// ---------------------------------------------------------------- reports that cannot be true
// (reports.cpp)

/// A member that has begun an epoch, with its report.
struct Begun {
  const Member* member;
  const Report* report;
};

[[nodiscard]] std::vector<Begun> begun_of(const State& s, const Epoch& epoch);

/// A member whose report cannot be true, and why not.
struct Lie {
  PeerId peer;
  std::string why;
};
/// The newest operation of a set; none: it is empty.
[[nodiscard]] std::optional<OpKey> newest_of(const OpSet& set);
/// Why a report, or a message, contradicts itself; empty: there is no contradiction.
[[nodiscard]] std::string contradiction(const Report& report);
[[nodiscard]] std::string contradiction(const PeerToMaster& message);
/// The furthest step that others than `p`, or the register, know the run to have reached; none if
/// no other member of the register's epoch is connected.
[[nodiscard]] std::optional<std::uint64_t> furthest_step_without(const State& s, PeerId p);
/// Finds, among members that are all ready, one whose report names a step or a commit that another
/// member would have to know, and that no other report names.
[[nodiscard]] std::optional<Lie> find_lie(const State& s, const Epoch& epoch);
/// A member whose operations make the verdict longer than a Start may be.
[[nodiscard]] std::optional<Lie> find_excess(const State& s, const std::vector<Member>& members,
                                             const Judgement& verdict);
/// If all members together have sent `done` for more operations than can be in flight: the member
/// that has sent it most often for operations which the others of its peer group have not done.
[[nodiscard]] std::optional<PeerId> find_hoarder(const State& s);

// ------------------------------------------------------------- in which order data go round
// (rings.cpp)

/// The register's epoch is another one: its links are measured when it runs.
void begin_rings(State& s);
/// Asks members to measure links.
void ask_to_measure(State& s, Actions& out);
void hear_of_rate(State& s, PeerId p, const Measured& m);
/// The ring of each peer group of these members, as places in the list; empty: rank order, also
/// where the operator wants that.
[[nodiscard]] std::vector<std::uint32_t> rings(const State& s, const std::vector<Member>& members);
/// The lines of a peer group whose members are these, and have been ready.
[[nodiscard]] Lines lines(const State& s, std::uint32_t group);
/// For the log: the rate that these far members are told.
[[nodiscard]] std::string rate_text(const State& s, std::uint32_t group, std::uint32_t mbit);
/// The same for the sites at which they stand, which are kept for `status`; empty if they stand as
/// before.
[[nodiscard]] std::string text_of_sites(State& s, std::uint32_t group, const Sites& sites);
/// A line for the log for each peer group whose members stay the same and whose ring changes.
[[nodiscard]] std::vector<std::string> changed_rings(const State& s, const Epoch* before,
                                                     const Epoch& epoch);

// -------------------------------------------------------------------------- which epoch
// (epochs.cpp)

/// Proposes another epoch if the members of the running or proposed one are not right any more.
void reconsider(State& s, Actions& out);
/// Has some connected member not voted yet? Cheap, because it is called at each vote.
[[nodiscard]] bool somebody_has_not_voted(State& s);
/// No epoch is proposed any more.
void drop_proposal(State& s);
/// All members of the proposed epoch are ready: writes the epoch to the register.
void write_proposal(State& s, Actions& out);
/// The run is over: by all members' leave, or finished.
void write_over(State& s, Actions& out, std::optional<Ending> ended = {});
/// Recomputes what is derived from the register's epoch.
void index_members(State& s);
/// A member leaves in good order.
void let_go(State& s, PeerId p, Actions& out);

// ------------------------------------------------------------- what a written register begins
// (starts.cpp)

/// A line for each member that comes or goes from `before` to `members`; one line for all ranks of
/// a replica.
[[nodiscard]] std::vector<std::string> changes(const State& s, const Epoch* before,
                                               const std::vector<Member>& members);
/// The register holds the proposed epoch, where `before` was: the epoch begins.
void start(State& s, const std::optional<Epoch>& before, Actions& out);
/// The register says that the run is over.
void end_run(State& s, const std::vector<Member>& before, Actions& out);
/// The register holds the adopted epoch.
void adopted(State& s, Actions& out);
/// ": silent for 10.0 s", of a member of an earlier epoch that comes back; empty: not known.
[[nodiscard]] std::string why_lost(const State& s, PeerId peer);
inline constexpr std::size_t kLostLatelyMax = 256;  // members of which that is known

// ------------------------------------------------ epochs that the register does not know
// (unknown.cpp)

/// True: the peer reports an epoch that the register does not know, or a proposal under this
/// incarnation that this master has not made. The register is lost, or was set back.
[[nodiscard]] bool is_unknown(const State& s, const Report& report);
/// True: a member of an epoch that this master has started reports one of this incarnation that was
/// not started, or not proposed. The register knows all that were started, so this is a lie.
[[nodiscard]] bool is_invented(const State& s, PeerId p, const Report& report);
/// Nothing goes on by itself from what this peer reports: the operator is asked, or has answered.
void hold_for_unknown(State& s, PeerId p, Actions& out);
/// What the operator is asked, or with --adopt what the master waits for, while such peers are
/// connected.
[[nodiscard]] std::string text_of_unknown(const State& s);
/// While a member of the register's epoch is among `alive`, a peer that reports an unknown epoch
/// belongs to another run.
void evict_foreign(State& s, const std::vector<Member>& alive, Actions& out);
/// --adopt: the newest epoch that connected peers have started becomes the register's. Before
/// `patience_over` only if all its members are connected.
void adopt(State& s, bool patience_over, Actions& out);

// ------------------------------------------------------------------------------------- both

void send(const State& s, PeerId peer, MasterToPeer message, Actions& out);
/// Sends to those of `peers` that are connected.
void send_all(const State& s, const std::vector<PeerId>& peers, MasterToPeer message, Actions& out);
/// The members of each peer group, in rank order.
[[nodiscard]] std::map<std::uint32_t, std::vector<PeerId>> by_group(
    const std::vector<Member>& members);
[[nodiscard]] Welcome welcome(const State& s, PeerId peer);
/// The master forgets all that it knows of the run. It may take over again only after it has read
/// the register anew.
void depose(State& s, const std::string& why, Actions& out);

// ------------------------------------------------------------- peers that come and go
// (connections.cpp)

void connected(State& s, const PeerConnected& e, Actions& out);
void disconnected(State& s, PeerId peer, Actions& out);
void gone(State& s, const PeerGone& e, Actions& out);
/// Those who are connected, and the absent members that may come back.
void for_each_here_or_awaited(const State& s, const std::function<void(const Member&)>& each);
/// Forgets a peer; a member that was awaited is awaited no more.
void forget(State& s, PeerId peer, const std::string& why, Actions& out);
/// Tells a peer that the run goes on without it, and closes its connection.
void evict(State& s, PeerId peer, const std::string& why, Actions& out);
/// Evicts a member; if the member comes back before the next Start, it may not go on either.
void expel(State& s, PeerId peer, const std::string& why, Actions& out);

}  // namespace pccl::master
