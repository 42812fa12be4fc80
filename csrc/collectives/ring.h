// The two halves of an all-reduce in which the parts of a tensor go round among ranks: among all
// of them (ring_all_reduce.cpp), or those of a site (two_level_all_reduce.cpp).
//
// In each step a rank sends the next one the part that has come from the one before it, segment by
// segment. A part of 0 bytes is not sent: all ranks know the sizes. Where they may not know them,
// they send empty segments, so that is not done here (ring_reduce_scatter.cpp,
// ring_all_gather.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "collectives/builder.h"

namespace pccl {

/// Ranks in a ring, as one of them sees it, and the parts of inputs[0] and outputs[0]: one for each
/// rank, in the order of the ring.
struct RingOfParts {
  std::uint32_t next = 0;
  std::uint32_t previous = 0;
  std::vector<Part> parts;
  std::uint32_t own = 0;  // index of the part that is summed at this rank
};

/// Of the first step of a half; each later step has one more.
struct RingStep {
  std::uint32_t channel = 0;
  std::uint32_t turn = 0;
};

/// The own part of the output becomes the sum of the inputs of all ranks. Partial sums are kept in
/// the output, too. Returns the step that makes the sum; there is none of one rank or of 0 bytes.
/// `last`: as for Builder::recv_reduce.
[[nodiscard]] std::optional<std::uint32_t> reduce_half(Builder& b, const RingOfParts& ring,
                                                       RingStep first, Builder::Last last);

/// The output becomes that of which each rank has its own part, this rank after `order`.
void gather_half(Builder& b, const RingOfParts& ring, RingStep first, Order order);

}  // namespace pccl
