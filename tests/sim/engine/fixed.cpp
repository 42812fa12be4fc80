// The program of a member without a run: fixed groups, one in the other, one after the other or of
// several threads. What all call follows from the seed; in some groups one member calls something
// else once, or leaves early.
#include <algorithm>
#include <utility>

#include "member.h"

namespace pccl::sim {
namespace {

constexpr std::uint64_t kAloneMs = 300;  // what may be waited for in vain

}  // namespace

Task Member::fixed() {
  for (std::uint64_t number = 0; number < plan_.steps; ++number) {
    const std::uint64_t salt = mixed(plan_.seed, 50 + number);
    if (plan_.several_threads && number + 1 < plan_.steps) {
      tasks_.push_back(std::make_unique<Task>(fixed_thread(salt)));
      tasks_.back()->begin();
    } else {
      co_await in_fixed_group(salt, number > 0);
    }
  }
  const std::function<bool()> ended = [this] { return threads_ == 0; };
  co_await until(ended);
  finish("all steps");
}

Task Member::fixed_thread(std::uint64_t salt) {
  ++threads_;
  co_await in_fixed_group(salt, true);
  --threads_;
}

/// `part`: of some members only.
Task Member::in_fixed_group(std::uint64_t salt, bool part) {
  std::vector<PeerId> members;
  std::vector<Handle> handles;
  for (const PeerId peer : plan_.world) {
    if (part && mixed(salt, peer.value) % 4 == 0) continue;
    members.push_back(peer);
    handles.push_back({peer, {}, {"sim:1"}});
  }
  const auto own = std::find(members.begin(), members.end(), id_);
  if (own == members.end() || members.size() < 2) co_return;
  const GroupId group_id{mixed(salt, 1) | (1ULL << 62)};
  const std::uint64_t count = 1 + mixed(salt, 2) % plan_.ops_max;
  const auto one_of = [&](std::uint64_t which) {
    return members[mixed(salt, which) % members.size()];
  };
  Expected expected;
  if (mixed(salt, 5) % 5 == 0) expected.odd_at = mixed(salt, 6) % count;
  if (mixed(salt, 7) % 5 == 0) expected.leaves_at = 1 + mixed(salt, 8) % count;
  const PeerId odd = one_of(9);
  const PeerId leaver = one_of(10);
  book_.expects(group_id, expected);

  if (time_.hit(40)) co_await pause(time_.chance.below(time_.hit(80) ? 3000 : 300000));
  doing_ = "makes a group";
  time_.say(&process_, "makes a group of " + std::to_string(members.size()) +
                           (expected.odd_at < count ? ", one mismatch" : "") +
                           (expected.leaves_at < count ? ", one leaves early" : ""));
  auto connected = std::make_shared<Ticket>();
  core_->add_fixed(group_id, "made", handles, static_cast<std::int32_t>(own - members.begin()),
                   plan_.group_ms, connected);
  fixed_groups_.push_back(group_id);
  const std::uint64_t begun_us = time_.now_us();
  co_await done(connected);
  judge_time(begun_us, plan_.group_ms + plan_.group_ms / 8, "the making of a group");
  ++book_.made[group_id];
  if (const Error error = connected->error(); error.failed()) {
    time_.say(&process_, "has no group: " + error.text);
    book_.group_failed(group_id, members, 0, "a group that is made", error);
  }
  std::vector<std::shared_ptr<Call>> calls;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (dozes_until_us_ > time_.now_us()) co_await pause(dozes_until_us_ - time_.now_us());
    Group* group = core_->find(group_id);
    if (group == nullptr || (id_ == leaver && i == expected.leaves_at)) break;
    const GroupView view = group->view();
    doing_ = "calls in a group";
    calls.push_back(prepare(mixed(salt, 100 + i), view, id_ == odd && i == expected.odd_at));
    post(calls.back(), view, group_id);
    if (time_.hit(50)) co_await done(calls.back()->ticket);
    if (time_.hit(20)) co_await pause(time_.chance.below(3000));
    if (plan_.messages && mixed(salt, 200 + i) % 2 == 0) {
      const bool all = i < expected.leaves_at;  // else some wait for nobody
      co_await exchange(mixed(salt, 300 + i), i, all ? plan_.group_ms : kAloneMs, group_id);
    }
    if (!part && expected.leaves_at > count && mixed(salt, 400 + i) % 4 == 0) {
      co_await in_fixed_group(mixed(salt, 500 + i), true);
    }
  }
  doing_ = "waits in a group";
  for (const auto& call : calls) co_await done(call->ticket);
  // As who makes groups by a store: what a group is made of is there until all have made it.
  const std::uint64_t until_us = time_.now_us() + 1000 * (plan_.faults ? kAloneMs : plan_.group_ms);
  while (book_.made[group_id] < members.size() && time_.now_us() < until_us) {
    co_await pause(2000);
  }
  core_->close(group_id);
  std::erase(fixed_groups_, group_id);
}

/// In the middle of whatever its program does.
void Member::ends_a_group(bool aborts) {
  process_.after(0, [this, aborts] {
    if (fixed_groups_.empty() || !core_) return;
    const GroupId id = fixed_groups_[time_.chance.below(fixed_groups_.size())];
    time_.say(&process_, aborts ? "aborts a group" : "closes a group");
    Group* group = core_->find(id);
    if (group == nullptr) return;
    if (aborts) return group->abort("the walk says so");
    core_->close(id);
  });
}

}  // namespace pccl::sim
