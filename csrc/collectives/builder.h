// Appends steps to a Schedule. All algorithms of this folder use it, so that an algorithm reads as
// the list of its steps. Knows no algorithm, and adds nothing that its caller did not name.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "collectives/schedule.h"

namespace pccl {

/// The steps that a step waits for: `after` until they are complete, `follows` segment by segment.
struct Order {
  std::vector<std::uint32_t> after;
  std::int32_t follows = -1;
};

inline Order following(std::uint32_t step) { return Order{{}, static_cast<std::int32_t>(step)}; }

class Builder {
 public:
  explicit Builder(const CollectiveArgs& args) : average_(args.reduce == ReduceOp::avg) {}

  std::uint32_t send(std::uint32_t peer, std::uint32_t channel, Range from, Order order = {}) {
    Step step;
    step.kind = StepKind::send;
    step.peer = peer;
    step.channel = channel;
    step.from = from;
    return add(std::move(step), std::move(order));
  }

  std::uint32_t recv(std::uint32_t peer, std::uint32_t channel, Range to, Order order = {},
                     StepKind kind = StepKind::recv) {
    Step step;
    step.kind = kind;
    step.peer = peer;
    step.channel = channel;
    step.turn = channel + 1;
    step.to = to;
    return add(std::move(step), std::move(order));
  }

  enum class Place : std::uint8_t { received_first, received_second };
  enum class Last : std::uint8_t { no, yes };
  static Last last_if(bool is_last) { return is_last ? Last::yes : Last::no; }

  /// `last`: this is the last reduction of the range, so an average is divided here.
  std::uint32_t recv_reduce(std::uint32_t peer, std::uint32_t channel, Range from, Range to,
                            Place place, Last last, Order order = {}) {
    Step step;
    step.kind = StepKind::recv_reduce;
    step.peer = peer;
    step.channel = channel;
    step.turn = channel + 1;
    step.from = from;
    step.to = to;
    step.received_second = place == Place::received_second;
    step.finish = last == Last::yes && average_;
    return add(std::move(step), std::move(order));
  }

  /// What `peer` sends, until add_borrowed uses it.
  std::uint32_t borrow(std::uint32_t peer, std::uint32_t channel, std::uint64_t bytes) {
    return recv(peer, channel, {Space::area, 0, 0, bytes}, {}, StepKind::borrow);
  }

  /// to = from and all that these steps have borrowed.
  std::uint32_t add_borrowed(Range from, Range to, std::vector<std::uint32_t> borrowed) {
    Step step;
    step.kind = StepKind::add_borrowed;
    step.from = from;
    step.to = to;
    step.finish = average_;
    for (const std::uint32_t earlier : borrowed) step.behind.push_back({earlier, 0});
    step.borrowed = std::move(borrowed);
    return add(std::move(step), {});
  }

  /// Adds no step if there is nothing to copy.
  void copy(Range from, Range to) {
    if (from.bytes > 0) add_copy(from, to);
  }
  std::uint32_t add_copy(Range from, Range to, Order order = {}) {
    Step step;
    step.kind = StepKind::copy;
    step.from = from;
    step.to = to;
    return add(std::move(step), std::move(order));
  }

  /// to = reduce(from, to). `last`: as for recv_reduce.
  std::uint32_t reduce(Range from, Range to, Last last, Order order) {
    Step step;
    step.kind = StepKind::reduce;
    step.from = from;
    step.to = to;
    step.received_second = true;
    step.finish = last == Last::yes && average_;
    return add(std::move(step), std::move(order));
  }

  /// The turn of a receive. Without this call it is channel + 1, which is right where the channels
  /// count the rounds of an algorithm.
  void set_turn(std::uint32_t receive, std::uint32_t turn, std::uint32_t turns = 0) {
    schedule_.steps[receive].turn = turn;
    schedule_.steps[receive].turns = turns;
  }

  /// Each segment of `step` waits for the one of `other` that comes so many before it.
  void lag(std::uint32_t step, std::uint32_t other, std::uint32_t segments) {
    schedule_.steps[step].behind.push_back({other, segments});
  }

  /// quantise, dequantise, add_dequantised. `last`: as for recv_reduce.
  std::uint32_t code(StepKind kind, Range from, Range to, std::vector<std::uint32_t> after,
                     Last last = Last::no) {
    Step step;
    step.kind = kind;
    step.from = from;
    step.to = to;
    step.finish = last == Last::yes && average_;
    return add(std::move(step), Order{std::move(after), -1});
  }

  [[nodiscard]] Schedule take(std::uint64_t scratch_bytes = 0) {
    schedule_.scratch_bytes = scratch_bytes;
    return std::move(schedule_);
  }

 private:
  std::uint32_t add(Step step, Order order) {
    step.after = std::move(order.after);
    step.follows = order.follows;
    schedule_.steps.push_back(std::move(step));
    return static_cast<std::uint32_t>(schedule_.steps.size() - 1);
  }

  bool average_;
  Schedule schedule_;
};

inline Range input(std::uint32_t index, std::uint64_t offset, std::uint64_t bytes) {
  return {Space::input, index, offset, bytes};
}
inline Range output(std::uint32_t index, std::uint64_t offset, std::uint64_t bytes) {
  return {Space::output, index, offset, bytes};
}
inline Range scratch(std::uint64_t offset, std::uint64_t bytes) {
  return {Space::scratch, 0, offset, bytes};
}

/// A part of a buffer that is cut into `parts` parts of whole elements; if the elements cannot be
/// divided evenly, the first parts have one element more.
struct Part {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

inline Part part_of(std::uint64_t bytes, std::uint64_t element_bytes, std::uint64_t parts,
                    std::uint64_t index) {
  const std::uint64_t elements = bytes / element_bytes;
  const std::uint64_t each = elements / parts;
  const std::uint64_t longer = elements % parts;
  const std::uint64_t begin = each * index + (index < longer ? index : longer);
  return {begin * element_bytes, (each + (index < longer ? 1 : 0)) * element_bytes};
}

/// Of the first input, or output.
inline Range input(Part part) { return input(0, part.offset, part.bytes); }
inline Range output(Part part) { return output(0, part.offset, part.bytes); }

inline std::uint64_t divide_up(std::uint64_t what, std::uint64_t by) {
  return (what + by - 1) / by;
}

/// (rank + distance) mod size, also for distances below zero.
inline std::uint32_t around(std::uint32_t rank, std::int64_t distance, std::uint32_t size) {
  const auto n = static_cast<std::int64_t>(size);
  return static_cast<std::uint32_t>(((static_cast<std::int64_t>(rank) + distance) % n + n) % n);
}
/// The rank from which it is `distance` to this one.
inline std::uint32_t before(std::uint32_t rank, std::uint64_t distance, std::uint32_t size) {
  return around(rank, -static_cast<std::int64_t>(distance % size), size);
}
/// How far this rank is from the root: 0 at the root itself.
inline std::uint32_t from_root(const CollectiveArgs& args) {
  return before(args.rank, args.root, args.size);
}

}  // namespace pccl
