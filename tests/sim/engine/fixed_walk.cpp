// One walk without a run: members that make fixed groups of each other, and what goes wrong.
#include <memory>
#include <utility>

#include "harm.h"
#include "judge.h"
#include "liar.h"
#include "walk.h"

namespace pccl::sim {
namespace {

class FixedWalk {
 public:
  FixedWalk(std::uint64_t seed, const Wishes& wishes) : time_(seed), cables_(time_) {
    time_.trace = wishes.trace;
    plan_.seed = mixed(seed, 3);
    plan_.steps = time_.between(1, 3);
    plan_.ops_max = static_cast<unsigned>(time_.between(2, 6));
    plan_.bytes_max = time_.hit(60) ? 3000 : 60000;
    plan_.messages = time_.hit(70);
    plan_.any_source = time_.hit(30);
    plan_.several_threads = time_.hit(40);
    plan_.faults = time_.hit(60);
    plan_.group_ms = time_.hit(70) ? 20000 : 60000;
    book_.faults = plan_.faults;
    cables_.bulk_lanes = time_.between(1, 2);
    cables_.slow = time_.hit(25);
    cables_.stretch(seed);
    if (cables_.slow && !plan_.faults) plan_.group_ms = 200000;  // 60 KB may take 20 s there
    const std::uint64_t size = time_.between(2, 5);
    for (std::uint64_t i = 0; i < size; ++i) {
      plan_.world.push_back(PeerId{(time_.chance.next() | 1) & ~(1ULL << 63)});
    }
    if (wishes.liars) lies();
  }

  Walked run() {
    return judged(time_, book_, [this] { story(); });
  }

 private:
  /// One rank lies. Nobody evicts it: any call of a group with the liar may fail, and where the
  /// liar contributes nobody can tell right numbers from wrong ones. But each call of a sound rank
  /// ends by its time-out, what sound ranks have done among themselves has the right bits, and no
  /// sound rank ends or writes beyond its tensors.
  void lies() {
    Random chance(mixed(plan_.seed, 10));
    liar_ = std::make_unique<Liar>(plan_.seed);
    const std::size_t number = chance.below(plan_.world.size());
    for (std::size_t i = 0; i < plan_.world.size(); ++i) {
      if (i != number) liar_->others.push_back(plan_.world[i]);
    }
    book_.liar = liar_->who = plan_.world[number];
    cables_.liar = liar_.get();
    lies_after_ms_ = chance.below(2) == 0 ? 0 : chance.below(100);
    plan_.any_source = false;  // a receive from any rank may get what the liar sends
    plan_.faults = chance.below(3) == 0;
    plan_.ends_in_time = !plan_.faults;
    book_.faults = true;
    book_.harmed({});
  }

  void story() {
    time_.say(nullptr, std::to_string(plan_.world.size()) + " members");
    if (liar_) {
      time_.say(nullptr, to_string(liar_->who).substr(0, 4) + " " + liar_->about());
      time_.after(1000 * lies_after_ms_, nullptr, [this] { liar_->begun = true; });
    }
    for (const PeerId id : plan_.world) {
      members_.push_back(std::make_unique<Member>(time_, cables_, board_, book_, plan_,
                                                  "m" + std::to_string(members_.size()), id, 1,
                                                  false));
      time_.after(time_.chance.below(5000), nullptr, [member = members_.back().get()] {
        if (!member->over()) member->begin();
      });
    }
    if (plan_.faults) {
      const std::uint64_t faults = time_.between(1, 3);
      const std::uint64_t span_us = 1000ULL * (time_.hit(80) ? 60 : 3000);
      for (std::uint64_t i = 0; i < faults; ++i) {
        time_.after(2000 + time_.chance.below(span_us), nullptr, [this] { fault(); });
      }
    }
    until_over(time_, members_, members_.size(), liar_ ? &liar_->who : nullptr);
    std::map<PeerId, bool> lived;
    for (const auto& member : members_) lived[member->id()] = member->lived();
    book_.close(lived);
  }

  void fault() {
    Member* one = any_of(members_, time_.chance);
    if (one == nullptr) return;
    const std::uint64_t what = time_.chance.below(14);
    if (what != 7 && what != 10 && what != 12) return harm(*one, what, cables_, book_);
    book_.harmed({one->id()});
    one->ends_a_group(what == 7);
  }

  Time time_;
  Cables cables_;
  Switchboard board_;
  Plan plan_;
  std::unique_ptr<Liar> liar_;  // null: nobody lies
  std::uint64_t lies_after_ms_ = 0;
  Book book_;
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace

Walked walk_fixed(std::uint64_t seed, const Wishes& wishes) {
  FixedWalk walk(seed, wishes);
  return walk.run();
}

}  // namespace pccl::sim
