// Time is seen as a graph over the steps of all ranks. An edge is an `after` (the earlier step is
// complete as a whole), or a `follows` or a message (complete byte by byte, at equal offsets). A
// conflict at a rank is harmless if a path leads from one step to the other, and either passes an
// `after` or the two use exactly the same range.
#include "check.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "base/limits.h"
#include "collectives/builder.h"

namespace pccl {
namespace {

bool is_send(const Step& s) { return s.kind == StepKind::send; }
bool is_receive(const Step& s) { return receives(s.kind); }
std::uint64_t bytes_of(const Step& s) { return is_send(s) ? s.from.bytes : s.to.bytes; }
bool writes_own(const Step& s) { return !is_send(s) && s.kind != StepKind::borrow; }
bool goes_by_segments(const Step& step) { return !step.behind.empty(); }

/// The same schedule with a step for each segment, and for each slot of the area a range of its
/// own.
Schedule unrolled(const Schedule& schedule) {
  const auto segments = [&](const Step& step) {
    return std::max<std::uint64_t>(1, divide_up(bytes_of(step), schedule.segment_bytes));
  };
  std::uint64_t most = 1;
  for (const Step& step : schedule.steps) most = std::max(most, segments(step));
  const auto count = static_cast<std::uint32_t>(schedule.steps.size());
  // First all first segments; what comes after whole steps comes last.
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> places;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> order;
  for (std::uint64_t i = 0; i <= most; ++i) {
    for (std::uint32_t s = 0; s < count; ++s) {
      const Step& step = schedule.steps[s];
      const bool last = !step.after.empty();
      if (last ? i < most : i >= segments(step)) continue;
      places[{s, last ? 0 : i}] = static_cast<std::uint32_t>(order.size());
      order.emplace_back(s, last ? 0 : i);
    }
  }
  Schedule flat = schedule;
  flat.steps.clear();
  for (const auto& [s, i] : order) {
    Step step = schedule.steps[s];
    for (Range* range : {&step.from, &step.to}) {
      const std::uint64_t before = i * schedule.segment_bytes;
      if (range->bytes > 0) range->bytes = std::min(schedule.segment_bytes, range->bytes - before);
      if (range->space == Space::area) {
        range->index = static_cast<std::uint32_t>(range->index * schedule.area_depth +
                                                  i % schedule.area_depth);
      } else {
        range->offset += before;
      }
    }
    std::vector<std::uint32_t> after;
    for (const std::uint32_t earlier : step.after) {
      for (std::uint64_t k = 0; k < segments(schedule.steps[earlier]); ++k) {
        after.push_back(places.at({earlier, k}));
      }
    }
    for (const Behind& b : step.behind) {
      if (i >= b.segments) after.push_back(places.at({b.step, i - b.segments}));
    }
    step.after = std::move(after);
    step.behind.clear();
    if (step.follows >= 0) {
      step.follows =
          static_cast<std::int32_t>(places.at({static_cast<std::uint32_t>(step.follows), i}));
    }
    for (std::uint32_t& borrowed : step.borrowed) borrowed = places.at({borrowed, i});
    step.turn += static_cast<std::uint32_t>(step.turns * i);
    // Segments of one step have the channel of the step: here each has its own.
    step.channel += static_cast<std::uint32_t>(i * 1000);
    flat.steps.push_back(std::move(step));
  }
  return flat;
}

struct Edge {
  std::size_t to = 0;
  bool whole = false;
};

class Checker {
 public:
  Checker(const std::vector<Schedule>& schedules, const std::vector<CollectiveArgs>& args,
          bool in_place)
      : schedules_(schedules), args_(args), in_place_(in_place) {}

  Error run() {
    if (schedules_.size() != args_.size()) return {ErrorCode::invalid, "one schedule per rank"};
    for (std::uint32_t r = 0; r < schedules_.size(); ++r) {
      first_.push_back(edges_.size());
      edges_.resize(edges_.size() + schedules_[r].steps.size());
      blocked_by_.resize(edges_.size());
      turns_.resize(edges_.size());
    }
    for (std::uint32_t r = 0; r < schedules_.size(); ++r) {
      for (std::uint32_t s = 0; s < schedules_[r].steps.size(); ++s) {
        if (Error e = check_step(r, s); e.failed()) return e;
      }
    }
    if (Error e = pair_up(); e.failed()) return e;
    if (Error e = check_end(); e.failed()) return e;
    for (std::uint32_t r = 0; r < schedules_.size(); ++r) {
      if (Error e = check_area(r); e.failed()) return e;
    }
    for (std::uint32_t r = 0; r < schedules_.size(); ++r) {
      if (Error e = check_turns(r); e.failed()) return e;
    }
    for (std::uint32_t r = 0; r < schedules_.size(); ++r) {
      if (Error e = check_conflicts(r); e.failed()) return e;
    }
    return {};
  }

 private:
  [[nodiscard]] static Error broken(std::uint32_t rank, std::size_t step, const std::string& rule) {
    return {ErrorCode::invalid,
            "rank " + std::to_string(rank) + ", step " + std::to_string(step) + ": " + rule};
  }

  void add_edge(std::size_t from, std::size_t to, bool whole) {
    edges_[from].push_back({to, whole});
    ++blocked_by_[to];
  }

  [[nodiscard]] bool inside(std::uint32_t rank, const Range& range) const {
    const CollectiveArgs& a = args_[rank];
    const auto fits = [&](std::uint64_t size) {
      return range.offset <= size && range.bytes <= size - range.offset;
    };
    switch (range.space) {
      case Space::input:
        return range.index < a.input_bytes.size() && fits(a.input_bytes[range.index]);
      case Space::output:
        return range.index < a.output_bytes.size() && fits(a.output_bytes[range.index]);
      case Space::scratch:
        return range.index == 0 && fits(schedules_[rank].scratch_bytes);
      case Space::area:
        return range.index < schedules_[rank].area_rows * schedules_[rank].area_depth &&
               fits(schedules_[rank].segment_bytes);
    }
    return false;
  }

  /// Between values and their codes, as a whole.
  [[nodiscard]] Error check_code(std::uint32_t r, std::uint32_t s) const {
    const Step& step = schedules_[r].steps[s];
    const Quantisation how = args_[r].quantisation;
    const Range& values = step.kind == StepKind::quantise ? step.from : step.to;
    const Range& coded = step.kind == StepKind::quantise ? step.to : step.from;
    if (how == Quantisation::none) return broken(r, s, "codes in an exact operation");
    if (values.bytes % sizeof(float) != 0) return broken(r, s, "a part of a value");
    if (values.space == Space::scratch) return broken(r, s, "values in the scratch");
    if (values.bytes > kSegmentBytesMax) return broken(r, s, "codes more than one segment");
    if (coded.bytes != quantised_bytes(values.bytes / sizeof(float), how)) {
      return broken(r, s, "codes of another length");
    }
    if (step.follows >= 0) return broken(r, s, "codes and follows a step");
    return {};
  }

  Error check_step(std::uint32_t r, std::uint32_t s) {
    const Step& step = schedules_[r].steps[s];
    const CollectiveArgs& a = args_[r];
    const bool reads = pccl::reads(step.kind);
    const bool writes = writes_own(step);
    if (reads && !inside(r, step.from)) return broken(r, s, "reads outside its buffers");
    if (writes && !inside(r, step.to)) return broken(r, s, "writes outside its buffers");
    if (writes && step.to.space == Space::input) return broken(r, s, "writes an input");
    if (codes(step.kind)) {
      if (Error e = check_code(r, s); e.failed()) return e;
    } else if (reads && writes && step.from.bytes != step.to.bytes) {
      return broken(r, s, "sizes differ");
    }
    if (step.kind == StepKind::recv_reduce || step.kind == StepKind::reduce ||
        step.kind == StepKind::add_borrowed) {
      if (bytes_of(step) % a.element_bytes != 0) return broken(r, s, "a part of an element");
      if (step.to.offset % a.element_bytes != 0 || step.from.offset % a.element_bytes != 0) {
        return broken(r, s, "begins inside an element");
      }
    }
    if (is_send(step) || is_receive(step)) {
      if (step.peer >= args_.size() || step.peer == r) return broken(r, s, "no such peer");
    }
    if (is_receive(step) != (step.turn > 0)) return broken(r, s, "receives have turns, no others");
    if (is_receive(step)) turns_[first_[r] + s] = step.turn;
    if (step.borrowed.empty() == (step.kind == StepKind::add_borrowed)) {
      return broken(r, s, "adds what is borrowed, or does not");
    }
    for (const std::uint32_t borrowed : step.borrowed) {
      if (borrowed >= s || schedules_[r].steps[borrowed].kind != StepKind::borrow) {
        return broken(r, s, "has borrowed nothing");
      }
      if (schedules_[r].steps[borrowed].to.bytes != step.to.bytes) {
        return broken(r, s, "has borrowed another length");
      }
      if (std::ranges::find(step.after, borrowed) == step.after.end()) {
        return broken(r, s, "adds what has not come");
      }
      added_in_[first_[r] + borrowed] = first_[r] + s;
    }
    for (const std::uint32_t earlier : step.after) {
      if (earlier >= s) return broken(r, s, "is after a step that is not earlier");
      add_edge(first_[r] + earlier, first_[r] + s, true);
    }
    if (step.follows >= 0) {
      const auto earlier = static_cast<std::uint32_t>(step.follows);
      if (earlier >= s) return broken(r, s, "follows a step that is not earlier");
      if (codes(schedules_[r].steps[earlier].kind)) return broken(r, s, "follows codes");
      if (bytes_of(schedules_[r].steps[earlier]) != bytes_of(step)) {
        return broken(r, s, "follows a step of another length");
      }
      add_edge(first_[r] + earlier, first_[r] + s, false);
    }
    return {};
  }

  Error pair_up() {
    using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;  // from, to, channel
    std::map<Key, std::uint32_t> sends;
    std::map<Key, std::uint32_t> receives;
    for (std::uint32_t r = 0; r < schedules_.size(); ++r) {
      for (std::uint32_t s = 0; s < schedules_[r].steps.size(); ++s) {
        const Step& step = schedules_[r].steps[s];
        if (is_send(step) && !sends.emplace(Key{r, step.peer, step.channel}, s).second) {
          return broken(r, s, "sends twice on a channel");
        }
        if (is_receive(step) && !receives.emplace(Key{step.peer, r, step.channel}, s).second) {
          return broken(r, s, "receives twice on a channel");
        }
      }
    }
    for (const auto& [key, s] : sends) {
      const auto [from, to, channel] = key;
      const auto it = receives.find(key);
      if (it == receives.end()) return broken(from, s, "nobody receives what it sends");
      if (bytes_of(schedules_[from].steps[s]) != bytes_of(schedules_[to].steps[it->second])) {
        return broken(from, s, "sends another size than is received");
      }
      turns_[first_[from] + s] = schedules_[to].steps[it->second].turn;
      add_edge(first_[from] + s, first_[to] + it->second, false);
      received_in_[first_[from] + s] = first_[to] + it->second;
      receives.erase(it);
    }
    for (const auto& [key, s] : receives) {
      return broken(std::get<1>(key), s, "nobody sends what it receives");
    }
    return {};
  }

  /// Every step comes to its turn, whatever the order of arrival: the graph has no cycle.
  Error check_end() {
    std::vector<std::uint32_t> left = blocked_by_;
    std::vector<std::size_t> ready;
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (left[i] == 0) ready.push_back(i);
    }
    std::size_t done = 0;
    for (; done < ready.size(); ++done) {
      for (const Edge& e : edges_[ready[done]]) {
        if (--left[e.to] == 0) ready.push_back(e.to);
      }
    }
    if (done == edges_.size()) return {};
    return {ErrorCode::invalid, "some steps wait for each other"};
  }

  /// What is sent from the area is read there by the other rank: before anything is written to the
  /// slot, and before this rank is done.
  Error check_area(std::uint32_t r) const {
    const std::vector<Step>& steps = schedules_[r].steps;
    for (std::uint32_t s = 0; s < steps.size(); ++s) {
      if (!is_send(steps[s]) || steps[s].from.space != Space::area) continue;
      std::size_t read = received_in_.at(first_[r] + s);
      if (const auto added = added_in_.find(read); added != added_in_.end()) read = added->second;
      const std::vector<std::uint8_t> from_read = reach(read);
      bool known = false;
      for (std::uint32_t other = 0; other < steps.size(); ++other) {
        known = known || from_read[first_[r] + other] > 0;
        if (!writes_own(steps[other]) || !overlap(steps[other].to, steps[s].from)) continue;
        if (from_read[first_[r] + other] > 0) continue;
        if (reach(first_[r] + other)[first_[r] + s] > 0) continue;
        return broken(r, other, "writes to a slot that another rank may still read");
      }
      if (!known) return broken(r, s, "the rank may be done before its area has been read");
    }
    return {};
  }

  /// Each step against the steps of its rank on which it depends.
  Error check_turns(std::uint32_t r) const {
    const std::vector<Step>& steps = schedules_[r].steps;
    // The latest turn of the steps on which each step depends: of the receives, and of all.
    std::vector<std::uint32_t> receives(steps.size(), 0);
    std::vector<std::uint32_t> all(steps.size(), 0);
    for (std::size_t s = 0; s < steps.size(); ++s) {
      std::vector<std::uint32_t> earlier = steps[s].after;
      if (steps[s].follows >= 0) earlier.push_back(static_cast<std::uint32_t>(steps[s].follows));
      for (const std::uint32_t e : earlier) {
        receives[s] = std::max({receives[s], receives[e], steps[e].turn});
        all[s] = std::max({all[s], all[e], turns_[first_[r] + e]});
      }
      const std::uint32_t turn = turns_[first_[r] + s];
      if (is_send(steps[s]) && receives[s] >= turn) {
        return broken(r, s, "waits for data of no smaller turn than its own");
      }
      if (is_receive(steps[s]) && all[s] > turn) {
        return broken(r, s, "waits for a step of a larger turn");
      }
    }
    return {};
  }

  /// Inputs and outputs that are the same memory count as the output.
  [[nodiscard]] Range canonical(std::uint32_t rank, Range range) const {
    const Aliased same = aliased_in_place(args_[rank]);
    if (in_place_ && same.any && range.space == Space::input && range.index == same.input) {
      range.space = Space::output;
      range.index = same.output;
    }
    return range;
  }

  static bool overlap(const Range& a, const Range& b) {
    return a.space == b.space && a.index == b.index && a.bytes > 0 && b.bytes > 0 &&
           a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
  }

  struct Uses {
    std::optional<Range> reads;
    std::optional<Range> writes;
  };

  [[nodiscard]] Uses uses(std::uint32_t rank, const Step& step) const {
    Uses u;
    if (reads(step.kind)) u.reads = canonical(rank, step.from);
    if (writes_own(step)) u.writes = canonical(rank, step.to);
    if (step.kind == StepKind::copy && *u.reads == *u.writes) return {};  // nothing happens
    return u;
  }

  /// For each node: 0 not reached from `start`, 1 byte by byte, 2 as a whole.
  [[nodiscard]] std::vector<std::uint8_t> reach(std::size_t start) const {
    std::vector<std::uint8_t> state(edges_.size(), 0);
    std::vector<std::size_t> stack{start};
    state[start] = 1;
    while (!stack.empty()) {
      const std::size_t node = stack.back();
      stack.pop_back();
      for (const Edge& e : edges_[node]) {
        const std::uint8_t to = e.whole ? std::uint8_t{2} : state[node];
        if (state[e.to] >= to) continue;
        state[e.to] = to;
        stack.push_back(e.to);
      }
    }
    return state;
  }

  Error check_conflicts(std::uint32_t r) const {
    const std::vector<Step>& steps = schedules_[r].steps;
    std::vector<Uses> used;
    used.reserve(steps.size());
    for (const Step& step : steps) used.push_back(uses(r, step));
    for (std::size_t a = 0; a < steps.size(); ++a) {
      std::vector<std::uint8_t> from_a;  // made when it is needed
      for (std::size_t b = a + 1; b < steps.size(); ++b) {
        const auto harmless = [&](const std::optional<Range>& x, const std::optional<Range>& y) {
          if (!x || !y || !overlap(*x, *y)) return true;
          if (from_a.empty()) from_a = reach(first_[r] + a);
          const std::uint8_t order = from_a[first_[r] + b];
          return order == 2 || (order == 1 && *x == *y);
        };
        if (!harmless(used[a].writes, used[b].reads) || !harmless(used[a].reads, used[b].writes) ||
            !harmless(used[a].writes, used[b].writes)) {
          return broken(r, b, "may use memory before step " + std::to_string(a) + " has");
        }
      }
    }
    return {};
  }

  const std::vector<Schedule>& schedules_;
  const std::vector<CollectiveArgs>& args_;
  bool in_place_;
  std::vector<std::size_t> first_;  // node of each rank's first step
  std::vector<std::vector<Edge>> edges_;
  std::vector<std::uint32_t> blocked_by_;
  std::vector<std::uint32_t> turns_;                // of each node: a send has that of its receive
  std::map<std::size_t, std::size_t> received_in_;  // node of a send -> of its receive
  std::map<std::size_t, std::size_t> added_in_;     // node of a borrow -> where it is added
};

}  // namespace

Aliased aliased_in_place(const CollectiveArgs& args) {
  const bool at_root = args.rank == args.root;
  switch (args.kind) {
    case OpKind::all_reduce:
      return {true, 0, 0};
    case OpKind::reduce:
    case OpKind::broadcast:
      return {at_root, 0, 0};
    case OpKind::all_gather:
      return {true, 0, args.rank};
    case OpKind::gather:
      return {at_root, 0, args.rank};
    case OpKind::scatter:
      return {at_root, args.rank, 0};
    case OpKind::reduce_scatter:
      return {true, args.rank, 0};
    case OpKind::all_to_all:
    case OpKind::barrier:
    case OpKind::send:
    case OpKind::recv:
      break;
  }
  return {};
}

Error check_schedules(const std::vector<Schedule>& schedules,
                      const std::vector<CollectiveArgs>& args, bool in_place) {
  std::vector<Schedule> flat = schedules;
  for (Schedule& schedule : flat) {
    if (std::ranges::any_of(schedule.steps, goes_by_segments)) schedule = unrolled(schedule);
  }
  return Checker(flat, args, in_place).run();
}

}  // namespace pccl
