// A collective operation as data: for one rank, the steps that move and reduce ranges of its
// buffers, and what each step waits for. Built by pure functions (one file per algorithm or family
// of them, chosen in selection.cpp), run by engine/operation.cpp, which knows no algorithm.
//
// Rules that every schedule keeps, and tests check for 1 to 9 ranks:
//  - The sends of a rank a to a rank b match the receives of b from a by `channel`: equal channel,
//    equal bytes. A channel is used once for each direction and pair in an operation.
//  - Steps are listed in an order in which they could run one after the other; `after`, `follows`
//    and a `behind` of no segments name earlier steps only.
//  - The result has the same bits at all ranks that receive it: each element is reduced in one
//    place, or by the same calls with the same operands in the same order.
//  - Buffers of kind `input` are written only if input and output are the same memory.
//  - A reader may read a slot of the area until its receive is done; if it borrows, until its
//    add_borrowed is done. No step writes the slot before.
//  - The `turn` of a receive is 1 or more, and larger than the turns of all receives on which the
//    matching send depends at its own rank (by `after` and `follows`, over any number of steps). A
//    receive has no smaller turn than a receive on which it depends, or than the receive that
//    matches a send on which it depends. So a rank that waits for data of another rank at turn t
//    has nobody to blame but that rank, unless the other rank waits at a turn before t itself
//    (engine/stall.h). Where `turns` is set this holds for the turns of its segments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "base/lines.h"
#include "base/types.h"

namespace pccl {

enum class Space : std::uint8_t { input, output, scratch, area };

/// Bytes [offset, offset + bytes) of a buffer: the index-th of the inputs or outputs, or the
/// scratch. A range in the area begins at offset 0 of row `index`, which has `area_depth` slots.
/// Segment i lies in slot i mod area_depth, so the range may be longer than the row.
struct Range {
  Space space = Space::input;
  std::uint32_t index = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool operator==(const Range&) const = default;
};

enum class StepKind : std::uint8_t {
  send,          // `from` to `peer`
  recv,          // from `peer` into `to`
  recv_reduce,   // to = reduce(received, from), or reduce(from, received) if `received_second`
  borrow,        // from `peer`, kept where it lies until it is added; of `to` the bytes count
  add_borrowed,  // to = reduce(from, what the steps `borrowed` have), in their order; gives it back
  copy,          // to = from (memmove; nothing happens if both are the same memory)
  reduce,        // to = reduce(from, to) if `received_second`, else reduce(to, from): local

  // Local, between float32 values and their codes (base/quantisation.h). Such a step is handled as
  // a whole: its values take at most one segment, and no step follows it, nor it another one.
  quantise,         // to (codes) = from (values)
  dequantise,       // to (values) = from (codes)
  add_dequantised,  // to (values) += from (codes)
};

constexpr std::string_view space_name(Space space) {
  switch (space) {
    case Space::input:
      return "input";
    case Space::output:
      return "output";
    case Space::scratch:
      return "scratch";
    case Space::area:
      return "area";
  }
  return "unknown";
}
constexpr std::string_view step_name(StepKind kind) {
  switch (kind) {
    case StepKind::send:
      return "send";
    case StepKind::recv:
      return "recv";
    case StepKind::recv_reduce:
      return "recv_reduce";
    case StepKind::borrow:
      return "borrow";
    case StepKind::add_borrowed:
      return "add_borrowed";
    case StepKind::copy:
      return "copy";
    case StepKind::reduce:
      return "reduce";
    case StepKind::quantise:
      return "quantise";
    case StepKind::dequantise:
      return "dequantise";
    case StepKind::add_dequantised:
      return "add_dequantised";
  }
  return "unknown";
}
constexpr bool receives(StepKind kind) {
  return kind == StepKind::recv || kind == StepKind::recv_reduce || kind == StepKind::borrow;
}
/// Does the step read `from`?
constexpr bool reads(StepKind kind) { return kind != StepKind::recv && kind != StepKind::borrow; }
constexpr bool codes(StepKind kind) {
  return kind == StepKind::quantise || kind == StepKind::dequantise ||
         kind == StepKind::add_dequantised;
}

/// Segment i of a step waits for segment i - `segments` of `step`, which has the same length; the
/// first `segments` ones do not wait.
struct Behind {
  std::uint32_t step = 0;
  std::uint32_t segments = 0;
};

struct Step {
  StepKind kind = StepKind::send;
  std::uint32_t peer = 0;     // index among the contributors; unused by local steps
  std::uint32_t channel = 0;  // unused by local steps
  std::uint32_t turn = 0;     // of receives, comparable between ranks; 0: no receive
  std::uint32_t turns = 0;    // from one segment to the next
  Range from;
  Range to;
  bool received_second = false;
  /// Divide by the number of contributors after this reduction (AVG): set on the last reduction of
  /// a range.
  bool finish = false;
  /// Steps that must be complete before this one starts. (For a receive: before bytes are written
  /// to `to`; the executor holds those that arrive earlier.)
  std::vector<std::uint32_t> after;
  /// A step of the same length that this one follows segment by segment; -1: none.
  std::int32_t follows = -1;
  std::vector<Behind> behind;
  std::vector<std::uint32_t> borrowed;  // of add_borrowed: steps of the same length
};

/// The algorithm of a schedule, for people: nothing follows from it.
enum class Algorithm : std::uint8_t {
  none,  // nothing has to be sent
  ring,
  doubling,
  exchange,
  direct,
  two_levels,
  areas,
  quantised,
  tree,
  chain,
  pairwise,
  dissemination,
};
inline constexpr std::size_t kAlgorithms = 12;

constexpr std::string_view algorithm_name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::none:
      return "none";
    case Algorithm::ring:
      return "ring";
    case Algorithm::doubling:
      return "doubling";
    case Algorithm::exchange:
      return "exchange";
    case Algorithm::direct:
      return "direct";
    case Algorithm::two_levels:
      return "two_levels";
    case Algorithm::areas:
      return "areas";
    case Algorithm::quantised:
      return "quantised";
    case Algorithm::tree:
      return "tree";
    case Algorithm::chain:
      return "chain";
    case Algorithm::pairwise:
      return "pairwise";
    case Algorithm::dissemination:
      return "dissemination";
  }
  return "unknown";
}

struct Schedule {
  Algorithm algorithm = Algorithm::none;  // build_schedule says which
  std::vector<Step> steps;
  std::uint64_t scratch_bytes = 0;
  std::uint32_t area_rows = 0;
  std::uint32_t area_depth = 0;  // slots of a row
  /// Of each segment of a step but the last one; the same at all ranks.
  std::uint64_t segment_bytes = kSegmentBytesMax;
};

/// The arguments of a builder: an operation at one rank. Contributors are the members that take
/// part, in rank order (or in ring_order, below); `rank` is this rank's place among them.
///
/// Buffers, all sizes in bytes, by contributor index where there is one per rank:
///
///  all_reduce      inputs[0]; outputs[0]
///  broadcast       inputs[0] at the root; outputs[0]
///  reduce          inputs[0]; outputs[0] at the root
///  all_gather      inputs[0]; outputs[i] from rank i (sizes may differ)
///  gather          inputs[0]; outputs[i] at the root, from rank i (sizes may differ)
///  scatter         inputs[i] at the root, to rank i (sizes may differ); outputs[0]
///  reduce_scatter  inputs[i] for rank i (sizes may differ); outputs[0]
///  all_to_all      inputs[i] to rank i; outputs[i] from rank i (sizes may differ)
///  barrier         none
///
/// "At the root": elsewhere there is none. Where a rank has both, its own input (inputs[0], or
/// inputs[rank]) and its own output (outputs[0], or outputs[rank]) may be the same memory, except
/// in an all_to_all.
struct CollectiveArgs {
  OpKind kind = OpKind::barrier;
  ReduceOp reduce = ReduceOp::none;
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::uint32_t root = 0;
  std::uint64_t element_bytes = 1;
  Quantisation quantisation = Quantisation::none;  // all_reduce of float32, sum or avg
  Lines lines = {};                                // the same ones at all ranks
  std::vector<std::uint64_t> input_bytes;
  std::vector<std::uint64_t> output_bytes;
};

/// Pairs of contributors, the lower one first.
using RankPairs = std::set<std::pair<std::uint32_t, std::uint32_t>>;

/// The contributors, given in `order`, in an order in which, if possible, no pair of `apart` are
/// neighbours, also not as last and first; `order` itself if that is such an order. The rings of
/// all algorithms follow the order in which the contributors are listed.
[[nodiscard]] std::vector<std::uint32_t> ring_order(std::vector<std::uint32_t> order,
                                                    const RankPairs& apart);

/// Would this operation go through areas if all its ranks were on one machine, whatever their
/// number? Sizes as in CollectiveArgs.
[[nodiscard]] bool may_go_through_areas(OpKind kind, Quantisation quantisation,
                                        const std::vector<std::uint64_t>& input_bytes,
                                        const std::vector<std::uint64_t>& output_bytes);

/// The schedule of `args` by the algorithm that selection.cpp picks for kind, size, bytes, lines. A
/// pure function; all ranks pick the same algorithm, because they decide by values that all know.
[[nodiscard]] Schedule build_schedule(const CollectiveArgs& args);

}  // namespace pccl
