// A group that is made from the elastic one in the middle of a step: some members, some
// collectives and messages, and its end. A member may be lost meanwhile; then each of the others
// fails by itself.
#include <algorithm>
#include <utility>

#include "member.h"

namespace pccl::sim {
namespace {

constexpr std::uint64_t kLateMost = 20'000;  // ms: some members come long after the others

}  // namespace

/// An operation of the run, which each calls once it has the group, or is not to be in it.
Task Member::all_have_it(std::uint64_t salt) {
  std::vector<std::shared_ptr<Call>> calls;
  co_await call(salt, calls);
  for (const auto& each : calls) co_await wait(each);
}

/// All members of a step draw the same from `salt`: who is in it, and what they call.
Task Member::in_group(std::uint64_t salt, GroupView of_run) {
  std::vector<PeerId> members;
  std::uint64_t number = salt;
  for (const PeerId peer : ranks_of(of_run)) {
    if (mixed(salt, 10 + members.size()) % 4 == 0 && mixed(salt, peer.value) % 2 == 0) continue;
    members.push_back(peer);
    number = mixed(number, peer.value);
  }
  const auto own = std::find(members.begin(), members.end(), id_);
  if (members.size() < 2) co_return;
  if (own == members.end()) co_return co_await all_have_it(mixed(salt, 2));
  const GroupId group_id{number | 1};
  const std::uint64_t late = mixed(salt, 1000 + id_.value);
  if (late % 8 == 0) co_await pause(late / 8 % kLateMost);
  doing_ = "makes a group";
  time_.say(&process_, "makes a group of " + std::to_string(members.size()));
  auto connected = std::make_shared<Ticket>();
  core_->add_of_run(group_id, "made", members, static_cast<std::int32_t>(own - members.begin()),
                    plan_.group_ms, connected);
  co_await done(connected);
  if (const Error error = connected->error(); error.failed()) {
    time_.say(&process_, "has no group: " + error.text);
    book_.group_failed(group_id, members, 0, "a group that is made", error);
    const bool in_run = !leaves_ && !core_->find(kElasticGroup)->view().failure.failed();
    if (in_run) book_.not_made(members, error);
    core_->close(group_id);
    co_return co_await all_have_it(mixed(salt, 2));
  }
  co_await all_have_it(mixed(salt, 2));
  std::vector<std::shared_ptr<Call>> calls;
  const std::uint64_t count = 1 + mixed(salt, 1) % plan_.ops_max;
  for (std::uint64_t i = 0; i < count; ++i) {
    Group* group = core_->find(group_id);
    if (group == nullptr) break;
    const GroupView view = group->view();
    doing_ = "calls in a group";
    calls.push_back(prepare(mixed(salt, 100 + i), view));
    post(calls.back(), view, group_id);
    if (time_.hit(50)) co_await done(calls.back()->ticket);
    if (time_.hit(20)) co_await pause(time_.chance.below(3000));
    if (plan_.messages && mixed(salt, 200 + i) % 2 == 0) {
      co_await exchange(mixed(salt, 300 + i), i, plan_.group_ms, group_id);
    }
  }
  doing_ = "waits in a group";
  for (const auto& call : calls) co_await done(call->ticket);
  core_->close(group_id);
}

}  // namespace pccl::sim
