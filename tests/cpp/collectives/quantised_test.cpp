// Quantised all-reduces of all ranks in one process, with the real kernels and in a random
// interleaving that a seed decides: messages arrive in any order, and a send reads its memory at
// some later moment than it is allowed to. Every rank must have the bits of a direct computation.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "check.h"
#include "collectives/algorithms.h"
#include "kernels/quantise.h"
#include "kernels/reduce.h"

namespace pccl::quantised_test {
namespace {

using Values = std::vector<float>;

constexpr Quantisation kKinds[] = {Quantisation::int8_minmax, Quantisation::int8_zero_point,
                                   Quantisation::int4_minmax, Quantisation::f16,
                                   Quantisation::bf16,        Quantisation::f8_e4m3,
                                   Quantisation::f8_e5m2};
constexpr QuantisedChunks kSmall{.values = kQuantisedBlock, .under_way = 6};

struct Case {
  std::uint32_t size = 2;
  std::size_t count = 1;
  Quantisation how = Quantisation::int8_minmax;
  ReduceOp reduce = ReduceOp::sum;
  QuantisedChunks chunks = kSmall;
  std::uint64_t seed = 1;
  [[nodiscard]] bool in_place() const { return seed % 2 == 0; }
  [[nodiscard]] std::string text() const {
    return std::to_string(size) + " ranks, " + std::to_string(count) + " values, " +
           std::string(quantisation_name(how)) + ", seed " + std::to_string(seed);
  }
};

CollectiveArgs args_of(const Case& c, std::uint32_t rank) {
  CollectiveArgs a;
  a.kind = OpKind::all_reduce;
  a.reduce = c.reduce;
  a.rank = rank;
  a.size = c.size;
  a.element_bytes = sizeof(float);
  a.input_bytes = a.output_bytes = {sizeof(float) * c.count};
  a.quantisation = c.how;
  return a;
}

Values contribution(const Case& c, std::uint32_t rank) {
  Random random(c.seed * 100 + rank);
  Values values(c.count);
  for (float& value : values) {
    value = static_cast<float>(static_cast<double>(random.below(2000001)) / 1e6 - 1);
  }
  return values;
}

/// Blocks begin at multiples of their length, so it does not matter who owns which part.
Values expected(const Case& c) {
  Values sum(c.count);
  std::vector<std::byte> codes(quantised_bytes(c.count, c.how));
  for (std::uint32_t rank = 0; rank < c.size; ++rank) {
    const Values own = contribution(c, rank);
    quantise(codes.data(), own.data(), c.count, c.how);
    if (rank == 0) {
      dequantise(sum.data(), codes.data(), c.count, c.how);
    } else {
      add_dequantised(sum.data(), codes.data(), c.count, c.how);
    }
  }
  if (c.reduce == ReduceOp::avg) {
    finish_average(reinterpret_cast<std::byte*>(sum.data()), c.count, DType::f32, c.size);
  }
  quantise(codes.data(), sum.data(), c.count, c.how);
  dequantise(sum.data(), codes.data(), c.count, c.how);
  return sum;
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
  explicit Ranks(const Case& c) : case_(c), random_(c.seed) {
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
        break;
      case StepKind::add_dequantised:
        add_dequantised(reinterpret_cast<float*>(to), from, count, case_.how);
        if (step.finish) finish_average(to, count, DType::f32, case_.size);
        break;
      case StepKind::recv_reduce:
      case StepKind::copy:
      case StepKind::reduce:
        FAIL() << "not in such a schedule";
    }
  }

  Case case_;
  Random random_;
  std::vector<CollectiveArgs> args_;
  std::vector<Schedule> schedules_;
  std::vector<Rank> ranks_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> receives_;
  std::vector<Task> tasks_;
};

void run_and_check(const Case& c) {
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

TEST(Quantised, EveryKindSumsAndAverages) {
  for (const Quantisation how : kKinds) {
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
  for (const std::uint32_t size : {2U, 5U, 64U, 100U, 1000U}) {
    CollectiveArgs args = args_of({.size = size, .count = 100}, size / 2);
    args.input_bytes = args.output_bytes = {std::uint64_t{1} << 32};
    const Schedule schedule = quantised_all_reduce(args);
    const std::size_t codes = quantised_bytes(kQuantisedChunkValues, args.quantisation);
    EXPECT_LE(schedule.scratch_bytes, 2 * kQuantisedChunksMax * codes) << size;
    // What may be coded before anything has come.
    std::uint64_t bytes = 0;
    std::vector<bool> waits(schedule.steps.size());
    for (std::size_t s = 0; s < schedule.steps.size(); ++s) {
      const Step& step = schedule.steps[s];
      waits[s] = receives(step.kind);
      for (const std::uint32_t a : step.after) waits[s] = waits[s] || waits[a];
      if (step.kind == StepKind::quantise && !waits[s]) bytes += step.from.bytes;
    }
    EXPECT_LE(bytes, kQuantisedChunksMax * kSegmentBytesMax) << size;
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
  for (const std::uint32_t size : {2U, 3U, 7U}) {
    const Ranks ranks({.size = size, .count = 20001});
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
  const Case c{.size = 2, .count = 1000};
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
