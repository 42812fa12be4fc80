// Quantised all-reduce: a direct exchange, in which every contribution is quantised once, whatever
// the number of ranks, and the sum once. (A ring would quantise a partial sum again at every hop.)
//
// The values are cut into one part for each rank, its owner, and each part into chunks of whole
// blocks. For each chunk every rank quantises its own values and sends the codes to the owner. The
// owner adds all contributions in the order of the ranks (its own one quantised as well, so that
// the sum does not depend on which rank owns it), divides an average, quantises the sum and sends
// the codes to all. Every rank, the owner too, makes its result of these codes: hence the same
// bits.
//
// Of each part `under_way` / n chunks are under way at once, but at least one; with more than
// `under_way` ranks the chunks are smaller instead. So the scratch memory is bounded, and so are
// the values that the start or one arrival gives to code. Channels: chunk j of any part uses 2 j
// for the contributions and 2 j + 1 for the sum. A sum depends on contributions of the same chunk,
// a contribution on sums of earlier chunks: never on a receive of a larger channel. Steps: 2 for
// each chunk; each rank sends 2 Q (n - 1) / n, where Q is the bytes of the codes of all values.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "collectives/algorithms.h"
#include "collectives/builder.h"

namespace pccl {
namespace {

constexpr std::uint64_t kValueBytes = sizeof(float);
static_assert(kQuantisedChunkValues * kValueBytes <= kSegmentBytesMax);
static_assert(kQuantisedChunkValues % kQuantisedBlock == 0);

struct Values {
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
};

class Quantised {
 public:
  Quantised(const CollectiveArgs& args, QuantisedChunks chunks)
      : args_(args), builder_(args), values_(args.input_bytes.at(0) / kValueBytes) {
    PCCL_ASSERT(chunks.values % kQuantisedBlock == 0, chunks.values);
    const std::uint64_t n = args.size;
    chunk_ = chunks.values;
    if (n > chunks.under_way) {
      const std::uint64_t smaller = chunk_ * chunks.under_way / n;
      chunk_ = std::max<std::uint64_t>(smaller / kQuantisedBlock, 1) * kQuantisedBlock;
    }
    const std::uint64_t longest = part(0).count;  // the first parts are the longest ones
    rounds_ = (longest + chunk_ - 1) / chunk_;
    window_ = std::max<std::uint64_t>(chunks.under_way / n, 1);
    window_ = std::min(window_, std::max<std::uint64_t>(rounds_, 1));
    slot_bytes_ = quantised_bytes(std::min(chunk_, longest), args.quantisation);
    users_.resize(window_ * slots());
    coded_.resize(args.size);
  }

  Schedule build() {
    for (std::uint64_t round = 0; round < rounds_; ++round) {
      for (std::uint32_t d = 1; d < args_.size; ++d) {
        contribute(round, around(args_.rank, d, args_.size));
      }
      reduce(round);
      for (std::uint32_t d = 1; d < args_.size; ++d) {
        collect(round, around(args_.rank, -static_cast<std::int64_t>(d), args_.size));
      }
    }
    return builder_.take(window_ * slots() * slot_bytes_);
  }

 private:
  using Steps = std::vector<std::uint32_t>;

  static std::uint32_t channel_of_contributions(std::uint64_t round) {
    return static_cast<std::uint32_t>(2 * round);
  }
  static std::uint32_t channel_of_sum(std::uint64_t round) {
    return static_cast<std::uint32_t>(2 * round + 1);
  }

  /// The scratch of a chunk under way: 2 n - 1 slots. Those below n, by owner: the contribution to
  /// that part, then its sum. The others, by rank: contributions of other ranks to the own part.
  [[nodiscard]] std::uint64_t slots() const { return 2 * std::uint64_t{args_.size} - 1; }
  [[nodiscard]] std::uint64_t exchanged(std::uint64_t round, std::uint32_t owner) const {
    return round % window_ * slots() + owner;
  }
  [[nodiscard]] std::uint64_t contributed(std::uint64_t round, std::uint32_t rank) const {
    if (rank == args_.rank) return exchanged(round, rank);
    return round % window_ * slots() + args_.size + (rank < args_.rank ? rank : rank - 1);
  }
  [[nodiscard]] Range codes(std::uint64_t slot, Values chunk) const {
    return scratch(slot * slot_bytes_, quantised_bytes(chunk.count, args_.quantisation));
  }

  static Range of_input(Values chunk) {
    return input(0, chunk.begin * kValueBytes, chunk.count * kValueBytes);
  }
  static Range of_output(Values chunk) {
    return output(0, chunk.begin * kValueBytes, chunk.count * kValueBytes);
  }
  [[nodiscard]] Values part(std::uint32_t owner) const {
    const std::uint64_t blocks = (values_ + kQuantisedBlock - 1) / kQuantisedBlock;
    const Part p = part_of(blocks, 1, args_.size, owner);
    const std::uint64_t begin = std::min(p.offset * kQuantisedBlock, values_);
    return {begin, std::min(p.bytes * kQuantisedBlock, values_ - begin)};
  }
  [[nodiscard]] Values chunk(std::uint64_t round, std::uint32_t owner) const {
    const Values p = part(owner);
    const std::uint64_t begin = std::min(round * chunk_, p.count);
    return {p.begin + begin, std::min(chunk_, p.count - begin)};
  }

  /// The own contribution to a part of another rank, which sends its sum back into the same slot.
  void contribute(std::uint64_t round, std::uint32_t owner) {
    const Values values = chunk(round, owner);
    if (values.count == 0) return;
    const std::uint64_t slot = exchanged(round, owner);
    coded_[owner] = builder_.code(StepKind::quantise, of_input(values), codes(slot, values),
                                  std::move(users_[slot]));
    builder_.send(owner, channel_of_contributions(round), codes(slot, values),
                  {{coded_[owner]}, -1});
  }

  void collect(std::uint64_t round, std::uint32_t owner) {
    const Values values = chunk(round, owner);
    if (values.count == 0) return;
    const std::uint64_t slot = exchanged(round, owner);
    // An owner that sends its sum too early must not have it written over an input that has not
    // been read yet.
    const auto came =
        builder_.recv(owner, channel_of_sum(round), codes(slot, values), {{coded_[owner]}, -1});
    users_[slot] = {
        builder_.code(StepKind::dequantise, codes(slot, values), of_output(values), {came})};
  }

  /// The own part: adds in the output, also where that is the input, of which the own codes are
  /// made first.
  void reduce(std::uint64_t round) {
    const Values values = chunk(round, args_.rank);
    if (values.count == 0) return;
    const std::uint64_t own = exchanged(round, args_.rank);
    const auto coded = builder_.code(StepKind::quantise, of_input(values), codes(own, values),
                                     std::move(users_[own]));
    Steps before{coded};
    for (std::uint32_t rank = 0; rank < args_.size; ++rank) {
      const std::uint64_t slot = contributed(round, rank);
      if (rank != args_.rank) {
        before.push_back(builder_.recv(rank, channel_of_contributions(round), codes(slot, values),
                                       {std::move(users_[slot]), -1}));
      }
      const StepKind kind = rank == 0 ? StepKind::dequantise : StepKind::add_dequantised;
      const auto last = rank + 1 == args_.size ? Builder::Last::yes : Builder::Last::no;
      before = {builder_.code(kind, codes(slot, values), of_output(values), before, last)};
      users_[slot] = before;
    }
    const auto sum =
        builder_.code(StepKind::quantise, of_output(values), codes(own, values), before);
    Steps readers;
    for (std::uint32_t d = 1; d < args_.size; ++d) {
      readers.push_back(builder_.send(around(args_.rank, d, args_.size), channel_of_sum(round),
                                      codes(own, values), {{sum}, -1}));
    }
    readers.push_back(
        builder_.code(StepKind::dequantise, codes(own, values), of_output(values), {sum}));
    users_[own] = std::move(readers);
  }

  const CollectiveArgs& args_;
  Builder builder_;
  std::uint64_t values_;
  std::uint64_t chunk_ = 0;  // values
  std::uint64_t rounds_ = 0;
  std::uint64_t window_ = 1;  // chunks of a part under way at once
  std::uint64_t slot_bytes_ = 0;
  Steps coded_;               // of this round, by owner: the step that has read the input
  std::vector<Steps> users_;  // by slot: the steps after which it may be written again
};

}  // namespace

Schedule quantised_all_reduce(const CollectiveArgs& args, QuantisedChunks chunks) {
  return Quantised(args, chunks).build();
}

Schedule quantised_all_reduce(const CollectiveArgs& args) {
  return quantised_all_reduce(args, QuantisedChunks{});
}

}  // namespace pccl
