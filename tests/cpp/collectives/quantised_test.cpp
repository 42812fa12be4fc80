// Quantised all-reduces of all ranks in one process, with the real kernels and in a random
// interleaving that a seed decides: messages arrive in any order, and a send reads its memory at
// some later moment than it is allowed to. Every rank must have the bits of a direct computation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "../kernels/quantisations.h"
#include "base/random.h"
#include "check.h"
#include "collectives/algorithms.h"
#include "kernels/quantise.h"
#include "kernels/reduce.h"
#include "mixed_sites.h"

namespace pccl::quantised_test {
namespace {

using Values = std::vector<float>;

constexpr QuantisedChunks kSmall{.values = kQuantisedBlock, .under_way = 6};

struct QuantisedCase {
  std::uint32_t size = 2;
  std::size_t count = 1;
  Quantisation how = Quantisation::int8_minmax;
  ReduceOp reduce = ReduceOp::sum;
  QuantisedChunks chunks = kSmall;
  std::uint64_t seed = 1;
  Sites sites = {};
  float scale = 1;  // of the contributions
  [[nodiscard]] bool in_place() const { return seed % 2 == 0; }
  [[nodiscard]] std::string text() const {
    std::string text = std::to_string(size) + " ranks, " + std::to_string(count) + " values, " +
                       std::string(quantisation_name(how)) + ", seed " + std::to_string(seed);
    for (const std::uint32_t site : sites) text += " " + std::to_string(site);
    return text;
  }
};

CollectiveArgs args_of(const QuantisedCase& c, std::uint32_t rank) {
  CollectiveArgs a;
  a.kind = OpKind::all_reduce;
  a.reduce = c.reduce;
  a.rank = rank;
  a.size = c.size;
  a.element_bytes = sizeof(float);
  a.input_bytes = a.output_bytes = {sizeof(float) * c.count};
  a.quantisation = c.how;
  a.lines = {80'000, 20'000, 0, c.sites};
  return a;
}

Values contribution(const QuantisedCase& c, std::uint32_t rank) {
  Random random(c.seed * 100 + rank);
  Values values(c.count);
  for (float& value : values) {
    value = static_cast<float>(static_cast<double>(random.below(2000001)) / 1e6 - 1) * c.scale;
  }
  return values;
}

/// Blocks begin at multiples of their length, so it does not matter who owns which part.
Values as_sent(Values values, Quantisation how) {
  std::vector<std::byte> codes(quantised_bytes(values.size(), how));
  quantise(codes.data(), values.data(), values.size(), how);
  dequantise(values.data(), codes.data(), values.size(), how);
  return values;
}

Values sum_of(const std::vector<Values>& all, Quantisation how) {
  Values sum = all.front();
  std::vector<std::byte> codes(quantised_bytes(sum.size(), how));
  for (std::size_t i = 0; i < all.size(); ++i) {
    quantise(codes.data(), all[i].data(), sum.size(), how);
    if (i == 0) {
      dequantise(sum.data(), codes.data(), sum.size(), how);
    } else {
      add_dequantised(sum.data(), codes.data(), sum.size(), how);
    }
  }
  return sum;
}

/// Contributions are added at each site, then the sums of the sites. An average is divided before
/// the first of these is quantised.
Values expected(const QuantisedCase& c) {
  const auto divided = [&](Values sum) {
    if (c.reduce == ReduceOp::avg) {
      finish_average(reinterpret_cast<std::byte*>(sum.data()), c.count, DType::f32, c.size);
    }
    return sum;
  };
  std::vector<Values> all;
  if (c.sites.empty()) {
    for (std::uint32_t rank = 0; rank < c.size; ++rank) all.push_back(contribution(c, rank));
  }
  for (const auto& site : ranks_by_site(c.sites)) {
    std::vector<Values> own;
    for (const std::uint32_t rank : site) own.push_back(contribution(c, rank));
    const bool is_sum = own.size() == 1 && c.reduce != ReduceOp::avg;
    all.push_back(is_sum ? own[0] : divided(sum_of(own, c.how)));
  }
  Values sum = sum_of(all, c.how);
  if (c.sites.empty()) sum = divided(std::move(sum));
  return c.sites.empty() || all.size() > 2 ? as_sent(std::move(sum), c.how) : sum;
}

/// One rank: its memory, and how far each of its steps is.
struct Rank {
  Schedule schedule;
  Values input;
  Values output;
  std::vector<std::byte> scratch;
  bool in_place = false;
  std::vector<bool> begun;
  std::vector<std::size_t> after_left;
  std::vector<std::vector<std::uint32_t>> dependents;
  std::map<std::uint32_t, std::vector<std::byte>> arrived;  // by step

  std::byte* at(const Range& range) {
    if (range.space == Space::scratch) return scratch.data() + range.offset;
    Values& values = range.space == Space::input && !in_place ? input : output;
    return reinterpret_cast<std::byte*>(values.data()) + range.offset;
  }
};

class Ranks {
 public:
  explicit Ranks(const QuantisedCase& c) : case_(c), random_(c.seed) {
    for (std::uint32_t r = 0; r < c.size; ++r) {
      args_.push_back(args_of(c, r));
      schedules_.push_back(quantised_all_reduce(args_.back(), c.chunks));
      Rank& rank = ranks_.emplace_back();
      rank.schedule = schedules_.back();
      rank.in_place = c.in_place();
      (rank.in_place ? rank.output : rank.input) = contribution(c, r);
      rank.output.resize(c.count, -77);
      rank.scratch.assign(rank.schedule.scratch_bytes, std::byte{0x5A});
      const std::vector<Step>& steps = rank.schedule.steps;
      rank.begun.resize(steps.size());
      rank.dependents.resize(steps.size());
      for (std::uint32_t s = 0; s < steps.size(); ++s) {
        rank.after_left.push_back(steps[s].after.size());
        for (const std::uint32_t a : steps[s].after) rank.dependents[a].push_back(s);
        if (receives(steps[s].kind)) receives_[{r, steps[s].peer, steps[s].channel}] = s;
      }
    }
  }

  [[nodiscard]] Error check() const { return check_schedules(schedules_, args_, case_.in_place()); }

  /// False: some step never had its turn.
  bool run() {
    for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
      for (std::uint32_t s = 0; s < ranks_[r].begun.size(); ++s) try_step(r, s);
    }
    while (!tasks_.empty()) {
      const std::size_t i = random_.below(tasks_.size());
      std::swap(tasks_[i], tasks_.back());
      const Task task = std::move(tasks_.back());
      tasks_.pop_back();
      if (task.delivers) {
        ranks_[task.rank].arrived[task.step] = task.payload;
        try_step(task.rank, task.step);
        continue;
      }
      handle(task.rank, task.step);
      for (const std::uint32_t d : ranks_[task.rank].dependents[task.step]) {
        --ranks_[task.rank].after_left[d];
        try_step(task.rank, d);
      }
    }
    for (const Rank& rank : ranks_) {
      for (const bool begun : rank.begun) {
        if (!begun) return false;
      }
    }
    return true;
  }

  [[nodiscard]] const Values& result(std::uint32_t rank) const { return ranks_[rank].output; }
  [[nodiscard]] const Values& input(std::uint32_t rank) const { return ranks_[rank].input; }
  [[nodiscard]] const std::vector<Schedule>& schedules() const { return schedules_; }

 private:
  struct Task {
    std::uint32_t rank = 0;
    std::uint32_t step = 0;
    bool delivers = false;
    std::vector<std::byte> payload;
  };

  void try_step(std::uint32_t r, std::uint32_t s) {
    Rank& rank = ranks_[r];
    if (rank.begun[s] || rank.after_left[s] > 0) return;
    if (receives(rank.schedule.steps[s].kind) && !rank.arrived.contains(s)) return;
    rank.begun[s] = true;
    tasks_.push_back({r, s, false, {}});
  }

  void handle(std::uint32_t r, std::uint32_t s) {
    Rank& rank = ranks_[r];
    const Step& step = rank.schedule.steps[s];
    std::byte* to = rank.at(step.to);
    const std::byte* from = rank.at(step.from);
    const std::size_t count = step.to.bytes / sizeof(float);
    switch (step.kind) {
      case StepKind::send:
        tasks_.push_back({step.peer, receives_.at({step.peer, r, step.channel}), true,
                          std::vector<std::byte>(from, from + step.from.bytes)});
        break;
      case StepKind::recv:
        std::memcpy(to, rank.arrived[s].data(), step.to.bytes);
        break;
      case StepKind::quantise:
        quantise(to, reinterpret_cast<const float*>(from), step.from.bytes / sizeof(float),
                 case_.how);
        break;
      case StepKind::dequantise:
        dequantise(reinterpret_cast<float*>(to), from, count, case_.how);
        if (step.finish) finish_average(to, count, DType::f32, case_.size);
        break;
      case StepKind::add_dequantised:
        add_dequantised(reinterpret_cast<float*>(to), from, count, case_.how);
        if (step.finish) finish_average(to, count, DType::f32, case_.size);
        break;
      case StepKind::recv_reduce:
      case StepKind::borrow:
      case StepKind::add_borrowed:
      case StepKind::copy:
      case StepKind::reduce:
        FAIL() << "not in such a schedule";
    }
  }

  QuantisedCase case_;
  Random random_;
  std::vector<CollectiveArgs> args_;
  std::vector<Schedule> schedules_;
  std::vector<Rank> ranks_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> receives_;
  std::vector<Task> tasks_;
};

void run_and_check(const QuantisedCase& c) {
  Ranks ranks(c);
  const Error error = ranks.check();
  ASSERT_FALSE(error.failed()) << c.text() << ": " << error.text;
  ASSERT_TRUE(ranks.run()) << c.text() << ": does not end";
  const Values right = expected(c);
  for (std::uint32_t r = 0; r < c.size; ++r) {
    ASSERT_EQ(ranks.result(r).size(), right.size());
    ASSERT_TRUE(right.empty() || std::memcmp(ranks.result(r).data(), right.data(),
                                             right.size() * sizeof(float)) == 0)
        << c.text() << ": rank " << r;
    if (!c.in_place()) {
      ASSERT_EQ(ranks.input(r), contribution(c, r)) << c.text();
    }
  }
}

TEST(Quantised, GivesTheSameBitsAtEveryRankInEveryInterleaving) {
  for (std::uint32_t size = 2; size <= 9; ++size) {
    for (const std::size_t count : {0U, 1U, 255U, 256U, 257U, 1000U, 4096U, 10001U}) {
      for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        run_and_check({.size = size, .count = count, .seed = seed});
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

QuantisedCase at(const Sites& sites, std::size_t count) {
  return {.size = static_cast<std::uint32_t>(sites.size()), .count = count, .sites = sites};
}

TEST(Quantised, GivesTheSameBitsAtSites) {
  for (const Sites& sites : test::kMixedSites) {
    for (const std::size_t count : {0U, 1U, 257U, 1000U, 4096U, 10001U}) {
      QuantisedCase c = at(sites, count);
      for (c.seed = 1; c.seed <= 6; ++c.seed) {
        c.reduce = c.seed % 3 == 0 ? ReduceOp::avg : ReduceOp::sum;
        c.how = kQuantisations[c.seed % std::size(kQuantisations)];
        run_and_check(c);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

/// Bytes that ranks of site 0 send to other sites, and that rank 0 sends to its own.
struct Sent {
  std::uint64_t far = 0;
  std::uint64_t near = 0;
};
Sent sent_by(const Sites& sites, std::size_t count) {
  Sent sent;
  for (std::uint32_t rank = 0; rank < sites.size(); ++rank) {
    if (sites[rank] != 0) continue;
    for (const Step& step : quantised_all_reduce(args_of(at(sites, count), rank)).steps) {
      if (step.kind != StepKind::send) continue;
      if (sites[step.peer] != 0) sent.far += step.from.bytes;
      if (sites[step.peer] == 0 && rank == 0) sent.near += step.from.bytes;
    }
  }
  return sent;
}

TEST(Quantised, TheSumOfASiteCrossesOnce) {
  constexpr std::size_t kCount = 4U << 20;
  const std::size_t codes = quantised_bytes(kCount, Quantisation::int8_minmax);
  for (const Sites& sites :
       {Sites{0, 0, 1}, Sites{0, 1, 1}, Sites{0, 0, 1, 1}, Sites{0, 0, 0, 0, 1, 1, 1, 1}}) {
    EXPECT_EQ(sent_by(sites, kCount).far, codes) << sites.size();
  }
  EXPECT_EQ(sent_by({0, 0, 0, 0, 1, 1, 1, 1}, kCount).near, codes * 3 * 3 / 4);
  // Of three sites 2 (k - 1) / k each, for which the adding site goes round.
  const Sent three = sent_by({0, 0, 1, 1, 2, 2}, 3 * kCount);
  EXPECT_NEAR(static_cast<double>(three.far) / static_cast<double>(3 * codes), 4.0 / 3, 0.01);
  EXPECT_EQ(three.near, 3 * codes);
}

/// Bytes that the busiest rank sends, by those of the codes of all values.
double sent_at_most(const Sites& sites, std::size_t count) {
  std::uint64_t most = 0;
  for (std::uint32_t rank = 0; rank < sites.size(); ++rank) {
    std::uint64_t bytes = 0;
    for (const Step& step : quantised_all_reduce(args_of(at(sites, count), rank)).steps) {
      if (step.kind == StepKind::send) bytes += step.from.bytes;
    }
    most = std::max(most, bytes);
  }
  return static_cast<double>(most) /
         static_cast<double>(quantised_bytes(count, Quantisation::int8_minmax));
}

Sites of_sizes(const std::vector<std::size_t>& sizes) {
  Sites sites;
  for (std::uint32_t site = 0; site < sizes.size(); ++site) {
    sites.insert(sites.end(), sizes[site], site);
  }
  return sites;
}

TEST(Quantised, NoRankSendsMuchMoreThanItsMates) {
  constexpr std::size_t kMiB = 1U << 18;  // values
  struct Shape {
    std::vector<std::size_t> sizes;
    double sent;  // on the average, at the site where that is most
  };
  const std::vector<std::size_t> sixteen(16, 2);
  const std::vector<std::size_t> nines{9, 8, 8, 8, 8, 8, 8, 8};
  for (const auto& [sizes, sent] :
       {Shape{{4, 4}, 2.5}, Shape{{5, 4}, 2.6}, Shape{{4, 3}, 2.5}, Shape{{8, 1}, 2.75},
        Shape{{2, 2, 2, 2}, 1.75}, Shape{{5, 4, 4, 4}, 1.9}, Shape{{3, 2, 2, 2}, 1.8},
        Shape{{4, 3, 3}, 1.8}, Shape{nines, 2.0}, Shape{sixteen, 1.94}, Shape{{33, 32}, 3.0}}) {
    const Sites sites = of_sizes(sizes);
    for (const std::size_t mib : {1, 4, 64}) {
      EXPECT_LE(sent_at_most(sites, mib * kMiB), 1.3 * sent)
          << sizes.size() << " sites, the first of " << sizes[0] << ", " << mib << " MiB";
    }
  }
}

TEST(Quantised, SmallFloatsHoldTheAverageOfLargeValues) {
  for (const Sites& sites : {Sites{0, 0, 1, 1}, Sites{0, 1, 1}, Sites{0, 0, 1, 1, 2, 2}}) {
    QuantisedCase c = at(sites, 300);
    c.how = Quantisation::f16;
    c.reduce = ReduceOp::avg;
    c.scale = 40000;
    run_and_check(c);
    for (const float value : expected(c)) ASSERT_TRUE(std::isfinite(value)) << c.text();
  }
}

TEST(Quantised, EveryKindSumsAndAverages) {
  for (const Quantisation how : kQuantisations) {
    for (const ReduceOp reduce : {ReduceOp::sum, ReduceOp::avg}) {
      for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        run_and_check({.size = 3, .count = 5001, .how = how, .reduce = reduce, .seed = seed});
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(Quantised, ChunksOfTheRealSizeDoTheSame) {
  for (const std::uint32_t size : {2U, 3U}) {
    run_and_check({.size = size, .count = 5 * kQuantisedChunkValues / 2 + 1, .chunks = {}});
  }
}

TEST(Quantised, NoMoreChunksAreUnderWayThanAllowed) {
  std::vector<Sites> all;
  for (const std::size_t size : {2U, 5U, 64U, 100U, 1000U}) all.emplace_back(size);
  for (const std::size_t size : {16U, 200U, 1000U}) {
    for (const std::uint32_t sites : {2U, 3U, 16U}) {
      Sites& even = all.emplace_back(size);
      for (std::size_t i = 0; i < size; ++i) even[i] = static_cast<std::uint32_t>(i) % sites;
      Sites& lonely = all.emplace_back(size);  // the largest site has nearly all
      for (std::uint32_t i = 0; i < sites; ++i) lonely[(size / 2 + i) % size] = i;
    }
  }
  for (const Sites& sites : all) {
    const auto size = static_cast<std::uint32_t>(sites.size());
    for (const std::uint32_t rank : {size / 2, (size / 2 + 1) % size}) {  // in a large site, alone
      CollectiveArgs args = args_of({.size = size, .count = 100}, rank);
      args.lines.sites = numbered_sites(sites);
      args.input_bytes = args.output_bytes = {std::uint64_t{1} << 32};
      const Schedule schedule = quantised_all_reduce(args);
      const std::size_t codes = quantised_bytes(kQuantisedChunkValues, args.quantisation);
      EXPECT_LE(schedule.scratch_bytes, 2 * kQuantisedChunksMax * codes) << size;
      // What may be coded before anything has left, or come.
      std::uint64_t bytes = 0;
      std::vector<bool> waits(schedule.steps.size());
      for (std::size_t s = 0; s < schedule.steps.size(); ++s) {
        const Step& step = schedule.steps[s];
        waits[s] = receives(step.kind) || step.kind == StepKind::send;
        for (const std::uint32_t a : step.after) waits[s] = waits[s] || waits[a];
        if (step.kind == StepKind::quantise && !waits[s]) bytes += step.from.bytes;
      }
      const std::size_t chunk = kQuantisedChunkValues * sizeof(float);
      EXPECT_LE(bytes, (size <= 16 ? 16 : kQuantisedChunksMax) * chunk) << size << " " << rank;
    }
  }
}

TEST(Quantised, SendsAsFewBytesAsADirectExchangeCan) {
  constexpr std::uint32_t kSize = 4;
  constexpr std::size_t kCount = kSize * 1024 * kQuantisedBlock;
  const Schedule schedule = quantised_all_reduce(args_of({.size = kSize, .count = kCount}, 1));
  std::uint64_t sent = 0;
  std::uint64_t quantised = 0;
  for (const Step& step : schedule.steps) {
    if (step.kind == StepKind::send) sent += step.from.bytes;
    if (step.kind == StepKind::quantise) quantised += step.from.bytes / sizeof(float);
  }
  EXPECT_EQ(sent, 2 * quantised_bytes(kCount, Quantisation::int8_minmax) * (kSize - 1) / kSize);
  EXPECT_EQ(quantised, kCount + kCount / kSize) << "each contribution once, and the sum once";
}

TEST(Quantised, ASendDependsOnReceivesOfSmallerChannelsOnly) {
  std::vector<QuantisedCase> cases;
  for (const std::uint32_t size : {2U, 3U, 7U}) cases.push_back({.size = size, .count = 20001});
  for (const Sites& sites : test::kMixedSites) cases.push_back(at(sites, 20001));
  for (const QuantisedCase& c : cases) {
    const Ranks ranks(c);
    for (const Schedule& schedule : ranks.schedules()) {
      std::vector<std::int64_t> newest(schedule.steps.size(), -1);  // channel of a receive before
      for (std::size_t s = 0; s < schedule.steps.size(); ++s) {
        const Step& step = schedule.steps[s];
        for (const std::uint32_t a : step.after) newest[s] = std::max(newest[s], newest[a]);
        if (step.kind == StepKind::send) {
          ASSERT_LT(newest[s], step.channel);
        }
        if (receives(step.kind)) newest[s] = std::max<std::int64_t>(newest[s], step.channel);
      }
    }
  }
}

TEST(Quantised, OneRankAloneRoundsNothing) {
  const Schedule schedule = build_schedule(args_of({.size = 1, .count = 300}, 0));
  ASSERT_EQ(schedule.steps.size(), 1U);
  EXPECT_EQ(schedule.steps[0].kind, StepKind::copy);
}

TEST(Quantised, TheSelectionTakesItForEverySize) {
  for (const std::size_t count : {1U, 100000U}) {
    const Schedule schedule = build_schedule(args_of({.size = 2, .count = count}, 0));
    EXPECT_EQ(schedule.steps.front().kind, StepKind::quantise);
  }
}

TEST(Quantised, TheCheckFindsCodesThatBreakItsRules) {
  const QuantisedCase c{.size = 2, .count = 1000};
  const auto error_of = [&](const auto& change) {
    std::vector<CollectiveArgs> args{args_of(c, 0), args_of(c, 1)};
    std::vector<Schedule> schedules;
    for (const CollectiveArgs& a : args) schedules.push_back(quantised_all_reduce(a, c.chunks));
    change(schedules[0], args[0]);
    return check_schedules(schedules, args, /*in_place=*/true).text;
  };
  const auto step_of = [](Schedule& s, StepKind kind) -> Step& {
    for (Step& step : s.steps) {
      if (step.kind == kind) return step;
    }
    return s.steps.front();
  };
  EXPECT_EQ(error_of([](Schedule&, CollectiveArgs&) {}), "");
  EXPECT_NE(error_of([](Schedule&, CollectiveArgs& a) {
              a.quantisation = Quantisation::none;
            }).find("exact operation"),
            std::string::npos);
  EXPECT_NE(error_of([&](Schedule& s, CollectiveArgs&) {
              --step_of(s, StepKind::quantise).to.bytes;
            }).find("another length"),
            std::string::npos);
  EXPECT_NE(error_of([&](Schedule& s, CollectiveArgs&) {
              step_of(s, StepKind::dequantise).follows = 0;
            }).find("codes and follows"),
            std::string::npos);
  EXPECT_NE(error_of([&](Schedule& s, CollectiveArgs&) {
              step_of(s, StepKind::add_dequantised).after.clear();
            }).find("may use memory before"),
            std::string::npos);
}

}  // namespace
}  // namespace pccl::quantised_test
