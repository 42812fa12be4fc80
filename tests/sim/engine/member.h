// A process of the run: a whole engine, and the program that calls it. The program is made of
// coroutines (program.cpp), one for each thread of a user.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "book.h"
#include "engine/engine_core.h"
#include "sim_network.h"
#include "state/fetch.h"
#include "task.h"

namespace pccl::sim {

/// What all programs of a walk have in common; drawn from the seed.
struct Plan {
  std::uint64_t seed = 0;
  std::uint64_t steps = 3;
  unsigned ops_max = 3;  // collectives of a step
  std::size_t bytes_max = 4096;
  bool messages = false;  // point-to-point between collectives
  bool any_source = false;
  bool groups = false;               // some steps make a group of some members
  bool boundaries = true;            // programs call refresh
  bool several_threads = false;      // without boundaries: two that call the same
  OpKind kind = OpKind::all_reduce;  // without boundaries: of all calls
  bool faults = true;
  std::uint64_t stay_for = 0;  // members of which one may relay: each stays until so many are done
  std::vector<std::string> masters;
  std::uint64_t op_timeout_ms = 60000;
  std::uint64_t group_ms = 20000;  // of what is waited for in a group that is not the elastic one
  bool ends_in_time = false;       // each call ends by its time-out, whatever others say
  std::vector<PeerId> world;       // without a run: who makes fixed groups
};

class Member {
 public:
  Member(Time& time, Cables& cables, Switchboard& board, Book& book, const Plan& plan,
         std::string name, PeerId id, std::uint64_t state, bool newcomer);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  void begin();
  /// As SIGKILL does; `silent`: its machine is gone.
  void kill(bool silent);
  /// At the next boundary, or in the middle of anything.
  void wants_to_leave(bool now);
  /// Closes or aborts one of its fixed groups at once.
  void ends_a_group(bool aborts);
  /// Its program does nothing for so long; its engine does.
  void dozes(std::uint64_t us) { dozes_until_us_ = time_.now_us() + us; }
  [[nodiscard]] std::uint64_t dozes_until_us() const { return dozes_until_us_; }

  [[nodiscard]] bool over() const { return over_ || !process_.alive(); }
  [[nodiscard]] bool lived() const { return !killed_; }
  [[nodiscard]] const std::string& fate() const { return fate_; }
  [[nodiscard]] std::string where() const;
  [[nodiscard]] Process& process() { return process_; }
  [[nodiscard]] SimNetwork& network() { return network_; }
  [[nodiscard]] PeerId id() const { return id_; }

 private:
  struct Waiting {
    std::function<bool()> ready;
    std::coroutine_handle<> handle;
    bool planned = false;
  };
  struct Until {
    Until(Member& in, std::function<bool()> when) : member(in), ready(std::move(when)) {}
    Member& member;
    std::function<bool()> ready;
    bool await_ready() { return false; }
    void await_suspend(std::coroutine_handle<> handle) {
      member.waiting_.push_back({std::move(ready), handle, false});
      member.look();
    }
    void await_resume() {}
  };
  [[nodiscard]] Until until(std::function<bool()> ready) { return Until(*this, std::move(ready)); }
  [[nodiscard]] Until pause(std::uint64_t us);
  [[nodiscard]] Until done(const std::shared_ptr<Ticket>& ticket) {
    return until([ticket] { return ticket->done(); });
  }
  void look();
  void broke(const std::string& what, bool out_of_memory);
  void finish(const std::string& fate);
  /// Throws a Violation if a call of this member has lasted for longer than its time-out.
  void judge_time(std::uint64_t posted_us, std::uint64_t timeout_ms, const std::string& what) const;

  // program.cpp
  Task main();
  Task stay();
  Task step(std::uint64_t number);
  Task call(std::uint64_t salt, std::vector<std::shared_ptr<Call>>& calls);
  Task wait(const std::shared_ptr<Call>& call);
  Task calls_alike(std::uint64_t thread);
  Task exchange(std::uint64_t salt, std::uint64_t thread, std::uint64_t timeout_ms,
                GroupId group_id = kElasticGroup);
  /// `odd`: not what the others call.
  [[nodiscard]] std::shared_ptr<Call> prepare(std::uint64_t salt, const GroupView& view,
                                              bool odd = false);
  void post(const std::shared_ptr<Call>& call, const GroupView& view,
            GroupId group_id = kElasticGroup);
  struct Mailing {
    GroupId group;
    GroupView view;
    std::uint64_t place = 0;  // see Message
    std::uint64_t timeout_ms = 0;
  };
  std::shared_ptr<Message> post_message(const Mailing& by, bool send, std::int32_t other,
                                        std::uint64_t tag, std::size_t bytes);
  std::shared_ptr<Message> post_unmet(Mailing by);

  // fixed.cpp
  Task fixed();
  Task fixed_thread(std::uint64_t salt);
  Task in_fixed_group(std::uint64_t salt, bool part);

  // groups.cpp
  Task all_have_it(std::uint64_t salt);
  Task in_group(std::uint64_t salt, GroupView of_run);

  // states.cpp
  Task refresh();
  Task fetch(const BoundaryEvent& event, const std::function<bool()>& superseded);
  void set_state(std::uint64_t state);
  [[nodiscard]] StateRoot root() const;
  [[nodiscard]] Snapshot snapshot();
  void check_state();

  Time& time_;
  Book& book_;
  const Plan& plan_;
  PeerId id_;
  bool newcomer_;
  Process process_;
  SimNetwork network_;
  EngineOptions options_;
  std::unique_ptr<EngineCore> core_;
  GroupView view_;  // as published
  std::list<Waiting> waiting_;
  std::vector<std::unique_ptr<Task>> tasks_;
  int threads_ = 0;  // that run beside main
  bool leaves_ = false;
  bool over_ = false;
  bool killed_ = false;
  std::uint64_t dozes_until_us_ = 0;
  std::string fate_;
  std::string doing_ = "begins";
  std::uint64_t salts_ = 0;
  std::vector<GroupId> fixed_groups_;

  // The shared state: item 0 is the manifest.
  std::uint64_t state_ = 0;
  std::uint64_t revision_ = 0;
  std::vector<Memory> items_;
  StateFetch fetch_;        // of this boundary
  bool answered_ = false;   // a fetch came to its end
  BoundaryEvent boundary_;  // the newest that has ended
  Error boundary_error_;
  std::vector<std::shared_ptr<void>> kept_;  // memory that tickets may still name
};

/// A number that follows from both.
[[nodiscard]] inline std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  return Random(a * 31 + b).next();
}

/// The ranks of a view, however it keeps them.
template <typename View>
[[nodiscard]] const std::vector<PeerId>& ranks_of(const View& view) {
  if constexpr (requires { *view.numbering; }) {
    return *view.numbering;
  } else {
    return view.numbering;
  }
}

/// The members of its epoch.
template <typename View>
[[nodiscard]] const std::vector<PeerId>& ring_of(const View& view) {
  if constexpr (requires { *view.ring; }) {
    return *view.ring;
  } else {
    return view.ring;
  }
}

}  // namespace pccl::sim
