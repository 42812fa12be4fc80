#include "walk.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "harm.h"
#include "judge.h"
#include "liar.h"
#include "master/server.h"
#include "member.h"

namespace pccl::sim {
namespace {

constexpr std::uint64_t kApartPercent = 8;   // of walks: two founders reach each other over a third
constexpr std::uint64_t kOutagePercent = 8;  // of the others: nothing fails but the master's router

/// The register: it outlives the masters.
class SimRegister final : public master::RegisterStore {
 public:
  explicit SimRegister(std::shared_ptr<master::Register> held) : held_(std::move(held)) {}
  Result<master::Register> read() override { return *held_; }
  Result<bool> compare_and_write(const master::Register& from,
                                 const master::Register& to) override {
    if (!(*held_ == from)) return false;
    *held_ = to;
    return true;
  }

 private:
  std::shared_ptr<master::Register> held_;
};

class Master {
 public:
  Master(Time& time, Cables& cables, Switchboard& board, const RunOptions& options,
         std::shared_ptr<master::Register> held)
      : process_(time, "M"), network_(cables, board, process_, PeerId{}) {
    process_.broke = [](const std::string& what, bool) {
      throw Violation("the master broke: " + what);
    };
    process_.after(0, [this, options, held] {
      MasterOptions listens;
      listens.port = 1;
      server_ = std::make_unique<master::MasterServer>(
          network_, listens,
          std::vector<ServedRun>{{options, std::make_shared<SimRegister>(held)}});
      const auto port = server_->start();
      if (!port) throw Violation("the master does not start: " + port.error().text);
    });
  }
  void kill() {
    process_.end();
    network_.break_channels(false);
    server_.reset();
  }
  [[nodiscard]] Process& process() { return process_; }

 private:
  Process process_;
  SimNetwork network_;
  std::unique_ptr<master::MasterServer> server_;
};

class Walk {
 public:
  Walk(std::uint64_t seed, const Wishes& wishes) : time_(seed), cables_(time_) {
    time_.trace = wishes.trace;
    plan_.seed = seed;
    plan_.masters = {"127.0.0.1:1"};
    plan_.steps = time_.between(1, 4);
    plan_.ops_max = static_cast<unsigned>(time_.between(1, 4));
    plan_.bytes_max = time_.hit(60) ? 3000 : 60000;
    plan_.messages = time_.hit(60);
    plan_.any_source = time_.hit(20);
    plan_.groups = time_.hit(30);
    plan_.boundaries = !time_.hit(25);
    plan_.several_threads = time_.hit(40);
    if (!plan_.several_threads && time_.hit(40)) plan_.kind = OpKind::reduce_scatter;
    plan_.faults = time_.hit(80);
    book_.faults = plan_.faults;
    cables_.bulk_lanes = time_.between(1, 2);
    cables_.slow = time_.hit(25);
    cables_.stretch(seed);
    board_.delay_us = time_.hit(30) ? time_.between(1000, 20000) : time_.between(20, 500);
    founders_ = time_.between(1, 4);
    options_.min_peers = static_cast<std::uint32_t>(founders_);
    options_.founding_delay_ms = 50;
    options_.patience_ms = 3000;
    options_.refound_after_ms = 20000;
    same_state_ = time_.hit(50);
    if (wishes.liars) {
      lies();
    } else if (!apart()) {
      outages();
    }
  }

  Walked run() {
    return judged(time_, book_, [this] { story(); });
  }

 private:
  /// In a share of the walks two founders never reach each other, and their tensors are several
  /// windows of a relay. Drawn beside the rest: all other walks stay what they are.
  bool apart() {
    Random chance(mixed(plan_.seed, 8));
    if (chance.below(100) >= kApartPercent) return false;
    founders_ = 3 + chance.below(2);
    options_.min_peers = static_cast<std::uint32_t>(founders_);
    apart_[0] = chance.below(founders_);
    apart_[1] = (apart_[0] + 1 + chance.below(founders_ - 1)) % founders_;
    plan_.bytes_max = 60000;
    plan_.faults = chance.below(2) == 0;
    book_.faults = plan_.faults;
    plan_.groups = chance.below(2) == 0;
    if (plan_.faults) book_.harmed({});  // whoever is lost may have been the relay of others
    third_is_late_ = chance.below(4) == 0;
    if (third_is_late_) {  // the two are alone until then, and the run is not founded
      founders_ = 3;
      options_.min_peers = 2;
      apart_[0] = 0;
      apart_[1] = 1;
    }
    if (!plan_.faults) plan_.stay_for = founders_;
    return true;
  }

  /// In a share of the walks all connections to the master end, once or twice, and that is all: no
  /// member is lost. Drawn beside the rest, too.
  void outages() {
    Random chance(mixed(plan_.seed, 9));
    if (chance.below(100) >= kOutagePercent) return;
    outages_ = 1 + chance.below(2);
    founders_ = 2 + chance.below(3);
    options_.min_peers = static_cast<std::uint32_t>(founders_);
    // A dial that nobody answers, and the pause after it; the next outage may meet the next dial.
    options_.patience_ms = 6000 * outages_;
    plan_.messages = false;  // they fail with their epoch
    plan_.faults = book_.faults = false;
    plan_.stay_for = founders_;
  }

  /// One founder lies. What the others must have all the same: book.h.
  void lies() {
    Random chance(mixed(plan_.seed, 10));
    liar_ = std::make_unique<Liar>(plan_.seed);
    founders_ = 2 + chance.below(3);
    options_.min_peers = static_cast<std::uint32_t>(founders_);
    liar_number_ = chance.below(founders_);
    lies_after_ms_ = chance.below(3) == 0 ? 0 : chance.below(300);
    if (chance.below(2) == 0) plan_.messages = plan_.groups = false;
    plan_.any_source = false;  // a receive from any rank may get what the liar sends
    plan_.faults = chance.below(3) == 0;
    book_.faults = true;
    book_.harmed({});
    // Whom a liar keeps waiting in a message or a group of its own comes late, and the others say
    // so.
    if (!plan_.faults && !plan_.messages && !plan_.groups && plan_.boundaries) {
      book_.sound = founders_ - 1;
    }
  }

  void story() {
    time_.say(nullptr, std::to_string(founders_) + " founders, " + std::to_string(plan_.steps) +
                           " steps" + (plan_.boundaries ? "" : ", no boundaries") +
                           (plan_.messages ? ", messages" : ""));
    new_master();
    for (std::uint64_t i = 0; i < founders_; ++i) {
      const std::uint64_t late_us =
          third_is_late_ && i == 2 ? 1000 * time_.between(1000, 50000) : 0;
      time_.after(late_us + time_.chance.below(20000), nullptr, [this] { add_member(false); });
    }
    for (std::uint64_t i = 0; i < outages_; ++i) {
      time_.after(45000 + 1000 * time_.chance.below(time_.hit(70) ? 150 : 3000), nullptr,
                  [this] { outage(); });
    }
    if (plan_.faults) {
      const std::uint64_t faults = time_.between(1, 4);
      const std::uint64_t span_us = 1000ULL * (time_.hit(70) ? 150 : 3000);
      for (std::uint64_t i = 0; i < faults; ++i) {
        time_.after(45000 + time_.chance.below(span_us), nullptr, [this] { fault(); });
      }
    }
    until_over(time_, members_, founders_, liar_ ? &liar_->who : nullptr);
    std::map<PeerId, bool> lived;
    for (const auto& member : members_) {
      lived[member->id()] = member->lived();
      if (plan_.faults || liar_ || member->fate() == "all steps" || member->fate() == "left")
        continue;
      throw Violation("without any fault: " + member->where());
    }
    book_.close(lived);
  }

  void new_master() { master_ = make_master(); }
  std::unique_ptr<Master> make_master() {
    time_.say(nullptr, "a master begins");
    return std::make_unique<Master>(time_, cables_, board_, options_, register_);
  }

  void add_member(bool newcomer) {
    const std::size_t number = members_.size();
    const PeerId id{(time_.chance.next() | 1) & ~(1ULL << 63)};
    const std::uint64_t state = same_state_ ? 1 : 1 + number % 2;
    auto& member = members_.emplace_back(std::make_unique<Member>(
        time_, cables_, board_, book_, plan_,
        std::string(newcomer ? "n" : "m") + std::to_string(number), id, state, newcomer));
    if (liar_ && number == liar_number_) {
      book_.liar = liar_->who = id;
      cables_.liar = liar_.get();
      time_.say(&member->process(), liar_->about());
      time_.after(1000 * lies_after_ms_, nullptr, [this] { liar_->begun = true; });
    } else if (liar_) {
      liar_->others.push_back(id);
    }
    member->begin();
    if (apart_[0] != apart_[1] && number == std::max(apart_[0], apart_[1])) {
      const PeerId other = members_[std::min(apart_[0], apart_[1])]->id();
      time_.say(&member->process(), "never reaches " + to_string(other).substr(0, 4));
      cables_.cut(id, other);
    }
    if (newcomer && !plan_.boundaries && time_.hit(50)) {  // it waits at the door
      time_.after(1000 * time_.between(1, 3000), nullptr, [leaver = member.get()] {
        if (!leaver->over()) leaver->wants_to_leave(true);
      });
    }
    time_.say(&member->process(), "begins as peer " + to_string(id).substr(0, 4));
  }

  void outage() {
    const std::uint64_t ms = time_.between(10, time_.hit(70) ? 2000 : 12000);
    time_.say(nullptr, "all are cut off from the master for " + std::to_string(ms) + " ms");
    for (const auto& member : members_) {
      if (member->over()) continue;
      board_.cut.insert(member->process().name());
      member->network().break_channels(false);
    }
    time_.after(1000 * ms, nullptr, [this] { board_.cut.clear(); });
  }

  void fault() {
    Member* one = any_of(members_, time_.chance);
    if (one == nullptr) return;
    Process& process = one->process();
    const std::uint64_t what = time_.chance.below(17);
    switch (what) {
      case 7: {
        book_.harmed({});
        if (!master_) return;
        time_.say(nullptr, "the master is killed");
        master_->kill();
        dead_masters_.push_back(std::move(master_));
        time_.after(1000 * time_.between(10, time_.hit(70) ? 500 : 5000), nullptr,
                    [this] { new_master(); });
        return;
      }
      case 10:
        book_.harmed({one->id()});
        return one->wants_to_leave(!plan_.boundaries || time_.hit(50));
      case 12: {
        book_.harmed({one->id()});
        const bool silent = time_.hit(30);
        time_.say(&process, std::string("is cut off from the master") +
                                (silent ? ", and nobody says so" : ""));
        board_.cut.insert(process.name());
        one->network().break_channels(silent);
        time_.after(1000 * time_.between(10, time_.hit(70) ? 2000 : 40000), nullptr,
                    [this, name = process.name()] { board_.cut.erase(name); });
        return;
      }
      case 14:
      case 15:
      case 16:
        return add_member(true);
      default:
        return harm(*one, what, cables_, book_);
    }
  }

  Time time_;
  Cables cables_;
  Switchboard board_;
  Plan plan_;
  RunOptions options_;
  std::uint64_t founders_ = 0;
  std::uint64_t apart_[2] = {0, 0};  // of founders; two that are the same: none
  bool third_is_late_ = false;
  std::uint64_t outages_ = 0;
  std::unique_ptr<Liar> liar_;  // null: nobody lies
  std::uint64_t liar_number_ = 0;
  std::uint64_t lies_after_ms_ = 0;
  bool same_state_ = true;
  std::shared_ptr<master::Register> register_ = std::make_shared<master::Register>();
  Book book_;
  std::vector<std::unique_ptr<Master>> dead_masters_;
  std::unique_ptr<Master> master_;
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace

Walked walk_engines(std::uint64_t seed, const Wishes& wishes) {
  Walk walk(seed, wishes);
  return walk.run();
}

}  // namespace pccl::sim
