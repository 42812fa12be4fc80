// Runs the schedules of all ranks of one operation in this process, in a random interleaving that a
// seed decides: segments are small, arrive in any order, and a send reads its memory at some later
// moment than it is allowed to. What lies in an area is read at the receiver's moment, or carried
// as all else, and a rank that is done spoils its area. So a dependency that is missing shows as a
// wrong result, and one that is too many as an operation that does not end.
//
// `run_and_check` makes the memory of all ranks, runs, and compares with a direct computation.
// Elements are 64-bit numbers; "sum" wraps, so it is exact, and a contribution that is missing or
// counted twice shows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "check.h"
#include "collectives/schedule.h"

namespace pccl::test {

using Element = std::uint64_t;
using Numbers = std::vector<Element>;

/// to = combine(a, b), and what an average is divided by.
struct Arithmetic {
  std::function<Element(Element, Element)> combine = [](Element a, Element b) { return a + b; };
  std::function<Element(Element)> finish = [](Element a) {
    return 3 * a + 1;
  };  // shows when done twice
};

/// The buffers of one rank; in place, an input lives in the memory of an output.
class Memory {
 public:
  Memory(const CollectiveArgs& args, std::uint64_t scratch_bytes, bool in_place) {
    for (const std::uint64_t bytes : args.input_bytes) inputs_.emplace_back(bytes / 8, 0);
    for (const std::uint64_t bytes : args.output_bytes) outputs_.emplace_back(bytes / 8, kPoison);
    scratch_.assign(scratch_bytes / 8, kPoison);
    if (in_place) same_ = aliased_in_place(args);
  }

  [[nodiscard]] Numbers& input(std::uint32_t index) {
    return same_.any && index == same_.input ? outputs_[same_.output] : inputs_[index];
  }
  [[nodiscard]] Numbers& output(std::uint32_t index) { return outputs_[index]; }
  [[nodiscard]] Element* at(const Range& range) {
    switch (range.space) {
      case Space::input:
        return input(range.index).data() + range.offset / 8;
      case Space::output:
        return range.bytes == 0 ? nullptr : outputs_[range.index].data() + range.offset / 8;
      case Space::scratch:
      case Space::area:  // by `slot`
        break;
    }
    return scratch_.data() + range.offset / 8;
  }
  [[nodiscard]] Element* slot(std::uint32_t row, std::size_t place, std::size_t elements) {
    Numbers& slot = area_[{row, place}];
    if (slot.empty()) slot.assign(elements, kPoison);
    return slot.data();
  }
  void spoil_area() {
    for (auto& [place, slot] : area_) std::fill(slot.begin(), slot.end(), kPoison);
  }
  [[nodiscard]] bool is_aliased(std::uint32_t index) const {
    return same_.any && index == same_.input;
  }

 private:
  static constexpr Element kPoison = 0xDEADBEEFDEADBEEF;
  std::vector<Numbers> inputs_;
  std::vector<Numbers> outputs_;
  Numbers scratch_;
  std::map<std::pair<std::uint32_t, std::size_t>, Numbers> area_;
  Aliased same_;
};

class Runner {
 public:
  Runner(std::vector<Schedule> schedules, std::vector<Memory>& memory, std::uint64_t segment_bytes,
         std::uint64_t seed, Arithmetic arithmetic)
      : schedules_(std::move(schedules)),
        memory_(memory),
        segment_bytes_(segment_bytes),
        random_(seed),
        arithmetic_(std::move(arithmetic)) {
    states_.resize(schedules_.size());
    for (std::uint32_t r = 0; r < schedules_.size(); ++r) prepare(r);
  }

  /// False: some step never had its turn.
  bool run() {
    for (std::uint32_t r = 0; r < schedules_.size(); ++r) {
      for (std::uint32_t s = 0; s < schedules_[r].steps.size(); ++s) try_step(r, s);
    }
    while (!tasks_.empty()) {
      const std::size_t i = random_.below(tasks_.size());
      std::swap(tasks_[i], tasks_.back());
      const Task task = std::move(tasks_.back());
      tasks_.pop_back();
      carry_out(task);
    }
    for (const auto& rank : states_) {
      for (const auto& state : rank) {
        if (state.done_count < state.done.size()) return false;
      }
    }
    return true;
  }

 private:
  struct State {
    std::vector<bool> done;  // by segment
    std::vector<bool> begun;
    std::vector<std::vector<Element>> arrived;
    std::vector<const Element*> lent;  // in place of `arrived`
    std::vector<bool> has_arrived;
    std::size_t done_count = 0;
    std::size_t after_left = 0;
    std::vector<std::uint32_t> dependents;
    std::vector<std::uint32_t> followers;
    std::vector<Behind> waiters;  // the steps that are behind this one
  };
  struct Task {
    std::uint32_t rank = 0;
    std::uint32_t step = 0;
    std::size_t segment = 0;
    bool delivers = false;  // else: the step handles the segment
    std::vector<Element> payload;
    const Element* lent = nullptr;
  };

  static bool receives(const Step& s) { return pccl::receives(s.kind); }
  static std::uint64_t bytes_of(const Step& s) {
    return s.kind == StepKind::send ? s.from.bytes : s.to.bytes;
  }

  void prepare(std::uint32_t r) {
    const auto& steps = schedules_[r].steps;
    states_[r].resize(steps.size());
    left_.push_back(steps.size());
    for (std::uint32_t s = 0; s < steps.size(); ++s) {
      State& state = states_[r][s];
      const std::size_t segments =
          std::max<std::size_t>(1, (bytes_of(steps[s]) + segment_bytes_ - 1) / segment_bytes_);
      state.done.assign(segments, false);
      state.begun.assign(segments, false);
      state.arrived.resize(segments);
      state.lent.resize(segments);
      state.has_arrived.assign(segments, false);
      state.after_left = steps[s].after.size();
      for (const std::uint32_t a : steps[s].after) states_[r][a].dependents.push_back(s);
      if (steps[s].follows >= 0) {
        states_[r][static_cast<std::uint32_t>(steps[s].follows)].followers.push_back(s);
      }
      for (const Behind& b : steps[s].behind) states_[r][b.step].waiters.push_back({s, b.segments});
      if (receives(steps[s])) receives_[{r, steps[s].peer, steps[s].channel}] = s;
    }
  }

  void try_step(std::uint32_t r, std::uint32_t s) {
    for (std::size_t i = 0; i < states_[r][s].done.size(); ++i) try_segment(r, s, i);
  }

  void try_segment(std::uint32_t r, std::uint32_t s, std::size_t segment) {
    State& state = states_[r][s];
    const Step& step = schedules_[r].steps[s];
    if (state.begun[segment] || state.after_left > 0) return;
    if (step.follows >= 0 && !states_[r][static_cast<std::uint32_t>(step.follows)].done[segment]) {
      return;
    }
    for (const Behind& b : step.behind) {
      if (segment >= b.segments && !states_[r][b.step].done[segment - b.segments]) return;
    }
    if (receives(step) && !state.has_arrived[segment]) return;
    state.begun[segment] = true;
    tasks_.push_back({r, s, segment, false, {}, nullptr});
  }

  void carry_out(const Task& task) {
    State& state = states_[task.rank][task.step];
    if (task.delivers) {
      state.arrived[task.segment] = task.payload;
      state.lent[task.segment] = task.lent;
      state.has_arrived[task.segment] = true;
      try_segment(task.rank, task.step, task.segment);
      return;
    }
    handle(task.rank, task.step, task.segment);
    state.done[task.segment] = true;
    ++state.done_count;
    for (const std::uint32_t f : state.followers) try_segment(task.rank, f, task.segment);
    for (const Behind& waiter : state.waiters) {
      const std::size_t later = task.segment + waiter.segments;
      if (later < state.done.size()) try_segment(task.rank, waiter.step, later);
    }
    if (state.done_count < state.done.size()) return;
    if (--left_[task.rank] == 0) memory_[task.rank].spoil_area();
    for (const std::uint32_t d : state.dependents) {
      if (--states_[task.rank][d].after_left == 0) try_step(task.rank, d);
    }
  }

  void handle(std::uint32_t r, std::uint32_t s, std::size_t segment) {
    const Step& step = schedules_[r].steps[s];
    const std::uint64_t offset = segment * segment_bytes_;
    const std::size_t count = std::min(segment_bytes_, bytes_of(step) - offset) / 8;
    const auto place = [&](Range range) {
      if (range.space != Space::area) return memory_[r].at(range) + offset / 8;
      return memory_[r].slot(range.index, segment % schedules_[r].area_depth, segment_bytes_ / 8);
    };
    const auto reduce = [&](const Element* other) {
      Element* to = place(step.to);
      const Element* own = place(step.from);
      for (std::size_t i = 0; i < count; ++i) {
        const Element sum = step.received_second ? arithmetic_.combine(own[i], other[i])
                                                 : arithmetic_.combine(other[i], own[i]);
        to[i] = step.finish ? arithmetic_.finish(sum) : sum;
      }
    };
    State& state = states_[r][s];
    const auto come = [&](const State& from) {
      return from.lent[segment] != nullptr ? from.lent[segment] : from.arrived[segment].data();
    };
    switch (step.kind) {
      case StepKind::send: {
        Task message{step.peer, receives_.at({step.peer, r, step.channel}), segment, true, {},
                     nullptr};
        if (step.from.space == Space::area && random_.below(3) > 0) {
          message.lent = place(step.from);
        } else if (count > 0) {
          message.payload.assign(place(step.from), place(step.from) + count);
        }
        tasks_.push_back(std::move(message));
        break;
      }
      case StepKind::recv:
        if (count > 0) std::copy_n(come(state), count, place(step.to));
        break;
      case StepKind::borrow:
        break;
      case StepKind::add_borrowed: {
        Element* to = place(step.to);
        for (std::size_t i = 0; i < count; ++i) {
          Element sum = place(step.from)[i];
          for (const std::uint32_t b : step.borrowed) {
            sum = arithmetic_.combine(sum, come(states_[r][b])[i]);
          }
          to[i] = step.finish ? arithmetic_.finish(sum) : sum;
        }
        break;
      }
      case StepKind::recv_reduce:
        if (count > 0) reduce(come(state));
        break;
      case StepKind::copy:
        if (count > 0) std::memmove(place(step.to), place(step.from), count * 8);
        break;
      case StepKind::reduce:
        if (count > 0) reduce(place(step.to));
        break;
      case StepKind::quantise:
      case StepKind::dequantise:
      case StepKind::add_dequantised:
        FAIL() << "quantised_test.cpp runs these";
    }
  }

  std::vector<Schedule> schedules_;
  std::vector<Memory>& memory_;
  std::uint64_t segment_bytes_;
  Random random_;
  Arithmetic arithmetic_;
  std::vector<std::vector<State>> states_;
  std::vector<std::size_t> left_;  // steps, by rank
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> receives_;
  std::vector<Task> tasks_;
};

// ------------------------------------------------------------------------------------ whole
// operations

using Algorithm = std::function<Schedule(const CollectiveArgs&)>;

struct Case {
  OpKind kind = OpKind::all_reduce;
  ReduceOp reduce = ReduceOp::sum;
  std::uint32_t size = 2;
  std::uint32_t root = 0;
  bool in_place = false;
  /// Elements: one number, or one per rank where `kind` has a buffer for each.
  std::vector<std::uint64_t> counts{1};
  std::uint64_t segment_bytes = 32;
  std::uint64_t seed = 1;
  Lines lines = {};

  [[nodiscard]] std::uint64_t count(std::uint32_t rank) const {
    return counts.size() == 1 ? counts[0] : counts[rank];
  }
  /// all_to_all: from `a` to `b`.
  [[nodiscard]] std::uint64_t count(std::uint32_t a, std::uint32_t b) const {
    return counts.size() == 1 ? counts[0] : counts[(a * 3 + b * 5) % counts.size()];
  }
  [[nodiscard]] std::string text() const {
    std::string t = std::string(kind_name(kind)) + " size " + std::to_string(size) + " root " +
                    std::to_string(root) + (in_place ? " in place" : "") + " seed " +
                    std::to_string(seed) + " counts";
    for (const std::uint64_t c : counts) t += " " + std::to_string(c);
    if (!lines.sites.empty()) t += " sites";
    for (const std::uint32_t s : lines.sites) t += " " + std::to_string(s);
    return t;
  }
};

inline CollectiveArgs args_of(const Case& c, std::uint32_t rank) {
  CollectiveArgs a;
  a.kind = c.kind;
  a.reduce = c.reduce;
  a.rank = rank;
  a.size = c.size;
  a.root = c.root;
  a.element_bytes = 8;
  a.lines = c.lines;
  const bool at_root = rank == c.root;
  const auto all = [&] {
    std::vector<std::uint64_t> bytes;
    for (std::uint32_t i = 0; i < c.size; ++i) bytes.push_back(8 * c.count(i));
    return bytes;
  };
  switch (c.kind) {
    case OpKind::all_reduce:
      a.input_bytes = a.output_bytes = {8 * c.count(0)};
      break;
    case OpKind::reduce:
      a.input_bytes = {8 * c.count(0)};
      if (at_root) a.output_bytes = a.input_bytes;
      break;
    case OpKind::broadcast:
      a.output_bytes = {8 * c.count(0)};
      if (at_root) a.input_bytes = a.output_bytes;
      break;
    case OpKind::all_gather:
      a.input_bytes = {8 * c.count(rank)};
      a.output_bytes = all();
      break;
    case OpKind::gather:
      a.input_bytes = {8 * c.count(rank)};
      if (at_root) a.output_bytes = all();
      break;
    case OpKind::scatter:
      a.output_bytes = {8 * c.count(rank)};
      if (at_root) a.input_bytes = all();
      break;
    case OpKind::reduce_scatter:
      a.input_bytes = all();
      a.output_bytes = {8 * c.count(rank)};
      break;
    case OpKind::all_to_all:
      for (std::uint32_t i = 0; i < c.size; ++i) {
        a.input_bytes.push_back(8 * c.count(rank, i));
        a.output_bytes.push_back(8 * c.count(i, rank));
      }
      break;
    case OpKind::barrier:
    case OpKind::send:
    case OpKind::recv:
      break;
  }
  return a;
}

/// Element `i` of input `buffer` of `rank`.
inline Element value_of(std::uint32_t rank, std::uint32_t buffer, std::uint64_t i) {
  return Random((static_cast<std::uint64_t>(rank) << 48) ^
                (static_cast<std::uint64_t>(buffer) << 40) ^ i)
      .next();
}

/// What output `buffer` of `rank` must hold at `i`, where reductions are wrapping sums.
inline Element expected(const Case& c, std::uint32_t rank, std::uint32_t buffer, std::uint64_t i) {
  const auto sum = [&](std::uint32_t from_buffer) {
    Element s = 0;
    for (std::uint32_t r = 0; r < c.size; ++r) s += value_of(r, from_buffer, i);
    return c.reduce == ReduceOp::avg && c.size > 1 ? Arithmetic{}.finish(s) : s;
  };
  switch (c.kind) {
    case OpKind::all_reduce:
    case OpKind::reduce:
      return sum(0);
    case OpKind::reduce_scatter:
      return sum(rank);
    case OpKind::broadcast:
      return value_of(c.root, 0, i);
    case OpKind::all_gather:
    case OpKind::gather:
      return value_of(buffer, 0, i);
    case OpKind::scatter:
      return value_of(c.root, rank, i);
    case OpKind::all_to_all:
      return value_of(buffer, rank, i);
    case OpKind::barrier:
    case OpKind::send:
    case OpKind::recv:
      break;
  }
  return 0;
}

inline void run_and_check(const Case& c, const Algorithm& build) {
  std::vector<CollectiveArgs> args;
  std::vector<Schedule> schedules;
  std::vector<Memory> memory;
  for (std::uint32_t r = 0; r < c.size; ++r) {
    args.push_back(args_of(c, r));
    schedules.push_back(build(args.back()));
    Memory& m = memory.emplace_back(args.back(), schedules.back().scratch_bytes, c.in_place);
    for (std::uint32_t b = 0; b < args[r].input_bytes.size(); ++b) {
      Numbers& numbers = m.input(b);
      for (std::uint64_t i = 0; i < numbers.size(); ++i) numbers[i] = value_of(r, b, i);
    }
  }
  const Error error = check_schedules(schedules, args, c.in_place);
  ASSERT_FALSE(error.failed()) << c.text() << ": " << error.text;
  Runner runner(std::move(schedules), memory, c.segment_bytes, c.seed, {});
  ASSERT_TRUE(runner.run()) << c.text() << ": does not end";
  for (std::uint32_t r = 0; r < c.size; ++r) {
    for (std::uint32_t b = 0; b < args[r].output_bytes.size(); ++b) {
      const Numbers& numbers = memory[r].output(b);
      for (std::uint64_t i = 0; i < numbers.size(); ++i) {
        ASSERT_EQ(numbers[i], expected(c, r, b, i))
            << c.text() << ": rank " << r << " output " << b << " element " << i;
      }
    }
    for (std::uint32_t b = 0; b < args[r].input_bytes.size(); ++b) {
      if (memory[r].is_aliased(b)) continue;
      const Numbers& numbers = memory[r].input(b);
      for (std::uint64_t i = 0; i < numbers.size(); ++i) {
        ASSERT_EQ(numbers[i], value_of(r, b, i))
            << c.text() << ": input of rank " << r << " changed";
      }
    }
  }
}

/// 2 to 9 ranks, in and out of place, several sizes and seeds, every root where there is one.
inline void run_all(Case c, const Algorithm& build) {
  const bool rooted = c.kind == OpKind::reduce || c.kind == OpKind::broadcast ||
                      c.kind == OpKind::gather || c.kind == OpKind::scatter;
  const bool per_rank = c.kind == OpKind::all_gather || c.kind == OpKind::gather ||
                        c.kind == OpKind::scatter || c.kind == OpKind::reduce_scatter ||
                        c.kind == OpKind::all_to_all;
  std::vector<std::vector<std::uint64_t>> counts{{0}, {1}, {2}, {7}, {24}, {101}};
  if (per_rank) {
    counts.push_back({5, 0, 17, 1, 0, 3, 40, 2, 9});
    counts.push_back({0, 0, 1, 0, 0, 0, 0, 0, 0});
  }
  for (c.size = 2; c.size <= 9; ++c.size) {
    for (c.root = 0; c.root < (rooted ? c.size : 1); ++c.root) {
      for (const auto& some : counts) {
        c.counts = some;
        for (c.seed = 1; c.seed <= 4; ++c.seed) {
          c.in_place = c.seed % 2 == 0;
          run_and_check(c, build);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

/// Where every rank has the result: all of them evaluate the same expression, operand by operand.
inline void expect_one_expression_of(const Case& c, const Algorithm& build) {
  const Arithmetic ordered{
      [](Element a, Element b) { return Random(a * 31 + b * 17 + 5).next(); },  // neither commutes
      [](Element a) { return a ^ 0x55; }};                                      // nor associates
  std::vector<Schedule> schedules;
  std::vector<Memory> memory;
  for (std::uint32_t r = 0; r < c.size; ++r) {
    const CollectiveArgs args = args_of(c, r);
    schedules.push_back(build(args));
    Memory& m = memory.emplace_back(args, schedules.back().scratch_bytes, c.in_place);
    Numbers& numbers = m.input(0);
    for (std::uint64_t i = 0; i < numbers.size(); ++i) numbers[i] = value_of(r, 0, i);
  }
  Runner runner(std::move(schedules), memory, c.segment_bytes, c.seed, ordered);
  ASSERT_TRUE(runner.run()) << c.text();
  for (std::uint32_t r = 1; r < c.size; ++r) {
    ASSERT_EQ(memory[r].output(0), memory[0].output(0)) << c.text() << " rank " << r;
  }
}

/// For 2 to 9 ranks.
inline void expect_one_expression(Case c, const Algorithm& build) {
  for (c.size = 2; c.size <= 9; ++c.size) {
    expect_one_expression_of(c, build);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace pccl::test
