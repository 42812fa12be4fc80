// One walk without a run: members that make fixed groups of each other, and what goes wrong.
#include <utility>

#include "harm.h"
#include "judge.h"
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
    if (cables_.slow && !plan_.faults) plan_.group_ms = 200000;  // 60 KB may take 20 s there
    const std::uint64_t size = time_.between(2, 5);
    for (std::uint64_t i = 0; i < size; ++i) {
      plan_.world.push_back(PeerId{(time_.chance.next() | 1) & ~(1ULL << 63)});
    }
  }

  Walked run() {
    return judged(time_, book_, [this] { story(); });
  }

 private:
  void story() {
    time_.say(nullptr, std::to_string(plan_.world.size()) + " members");
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
    until_over(time_, members_, members_.size());
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
  Book book_;
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace

Walked walk_fixed(std::uint64_t seed, const Wishes& wishes) {
  FixedWalk walk(seed, wishes);
  return walk.run();
}

}  // namespace pccl::sim
