// Quantised all-reduce: a direct exchange, in which every contribution is quantised once, whatever
// the number of ranks, and the sum once. (A ring would quantise a partial sum again at every hop.)
//
// The values are cut into chunks of whole blocks. A chunk has an owner, by turns. Every rank
// quantises its own values and sends the codes to the owner. The owner adds all contributions in
// the order of the ranks (its own one quantised as well, so that the sum does not depend on which
// rank owns it), divides an average, quantises the sum and sends the codes to all. Every rank, the
// owner too, makes its result of these codes: hence the same bits.
//
// Where ranks stand at k sites, a chunk has an owner at each site, and all this goes on within each
// site. So the codes of a site's sum cross to the other sites, not those of each of its ranks. (It
// is divided already where an average is wanted: small floats hold no large sums.) Of two sites the
// owners exchange their codes, all ranks are sent both, and add them: nothing is quantised again.
// Of more sites one owner, by turns, adds the sums of all sites as it would add contributions, and
// the others pass the codes of its sum on. A rank that is alone at its site quantises no sum: its
// contribution is one.
//
// A round has as many chunks as the largest site has ranks; of more than two sites as many as there
// are sites, if that is more. Of `under_way` chunks, with a scratch memory of twice as many, so
// many rounds as fit are under way at once, but at least one; where a round needs more memory,
// chunks are smaller instead. So memory is bounded. At most kCodedAhead chunks (one round at
// least) of a rank's own values are coded that the kernel has not taken: so a rank begins to send
// early, and goes on while it codes. (A rank that is alone at its site sends these as sums.)
// Channels of chunk c: 4 c for
// contributions, 4 c + 1 for sums of sites on the way to where they are added, 4 c + 2 for the sum
// of all, 4 c + 3 for what ranks make their results of (of two sites 4 c + 2 and 4 c + 3). What is
// sent depends on receives of smaller channels only. Steps: 2 for each chunk (two sites: 2 near, 1
// far; more: 2 near, 2 far). With Q the bytes of the codes of all values and m ranks at each site a
// rank sends 2 Q (n - 1) / n; at two sites 3 Q (m - 1) / m near and Q / m far, at more 2 Q (m - 1)
// / m near and 2 Q (k - 1) / (k m) far.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/own_site.h"

namespace pccl {
namespace {

constexpr std::uint64_t kValueBytes = sizeof(float);
static_assert(kQuantisedChunkValues * kValueBytes <= kSegmentBytesMax);
static_assert(kQuantisedChunkValues % kQuantisedBlock == 0);

constexpr std::uint64_t kCodedAhead = 16;
constexpr std::uint64_t kEvenRounds = 4;      // of sites of different sizes: so owners do alike
constexpr std::uint64_t kEvenBlocksMin = 16;  // if chunks are no smaller then

class Quantised {
 public:
  Quantised(const CollectiveArgs& args, QuantisedChunks chunks)
      : args_(args),
        builder_(args),
        values_(args.input_bytes.at(0) / kValueBytes),
        site_(args),
        round_(site_.count() > 2 ? std::max(site_.most, site_.count()) : site_.most) {
    PCCL_ASSERT(chunks.values % kQuantisedBlock == 0, chunks.values);
    for (const auto& ranks : site_.sites) slots_ = std::max(slots_, slots_at(ranks.size()));
    const std::uint64_t slots_max = 2 * std::uint64_t{chunks.under_way};
    std::uint64_t limit = chunks.values / kQuantisedBlock;  // blocks of a chunk
    if (slots_ > slots_max) limit = std::max<std::uint64_t>(limit * slots_max / slots_, 1);
    const std::uint64_t blocks = divide_up(values_, kQuantisedBlock);
    std::uint64_t rounds = std::max<std::uint64_t>(divide_up(blocks, round_ * limit), 1);
    const bool even = std::all_of(site_.sites.begin(), site_.sites.end(),
                                  [&](const auto& ranks) { return ranks.size() == site_.most; });
    if (!even) rounds = std::max(rounds, std::min(blocks / (round_ * kEvenBlocksMin), kEvenRounds));
    chunk_ = std::max<std::uint64_t>(divide_up(blocks, rounds * round_), 1) * kQuantisedBlock;
    chunks_ = divide_up(values_, chunk_);
    window_ = std::min(chunks.under_way / round_, slots_max / slots_);
    window_ = std::clamp<std::uint64_t>(window_, 1, rounds);
    slot_bytes_ = quantised_bytes(std::min(chunk_, values_), args.quantisation);
    users_.resize(window_ * slots_);
    leaving_.resize(std::max<std::uint64_t>(kCodedAhead / round_, 1));
  }

  Schedule build() {
    for (std::uint64_t begin = 0; begin < chunks_; begin += round_) {
      next_slot_ = begin / round_ % window_ * slots_;
      left_ = std::exchange(leaving_[begin / round_ % leaving_.size()], {});
      std::vector<Chunk> round;
      for (std::uint64_t i = begin; i < std::min(begin + round_, chunks_); ++i) {
        round.push_back(chunk(i));
      }
      // Each rank begins with the chunk of the rank after it.
      const auto first = static_cast<std::ptrdiff_t>((site_.place + 1) % round.size());
      std::rotate(round.begin(), round.begin() + first, round.end());
      const auto each = [&](bool own, auto work) {
        for (Chunk& c : round) {
          if ((c.owner == args_.rank) == own) (this->*work)(c);
        }
      };
      each(false, &Quantised::contribute);
      each(true, &Quantised::reduce);
      each(false, &Quantised::collect);
    }
    return builder_.take(window_ * slots_ * slot_bytes_);
  }

 private:
  using Steps = std::vector<std::uint32_t>;
  using Sent = std::vector<std::pair<std::uint32_t, std::uint32_t>>;  // to a rank, by a step

  /// Codes in scratch memory, and the step after which they are there.
  struct Codes {
    std::uint64_t slot = 0;
    std::uint32_t ready = 0;
  };
  struct Chunk {
    std::uint64_t number = 0;
    std::uint64_t begin = 0;  // values
    std::uint64_t count = 0;
    std::uint32_t owner = 0;     // at the own site
    std::vector<Codes> results;  // of which all ranks make theirs: of two sites each one's sum
    std::uint64_t own = 0;       // slot of the own contribution, then of the result of this site
    std::uint32_t read = 0;      // the step after which the result may be written
  };

  [[nodiscard]] std::size_t results() const { return site_.count() == 2 ? 2 : 1; }
  [[nodiscard]] std::uint32_t owner(std::uint64_t chunk, std::size_t site) const {
    return site_.sites[site][chunk % site_.sites[site].size()];
  }
  /// At which the sums of all sites are added. Sites take turns in a round, and begin anywhere: by
  /// the golden ratio, so that in the end all owners of a site have added as often.
  [[nodiscard]] std::size_t adding_site(std::uint64_t chunk) const {
    const auto fraction = static_cast<std::uint32_t>(chunk / round_ * 2'654'435'769U);
    const std::uint64_t first = std::uint64_t{fraction} * site_.count() >> 32;
    return (first + chunk % round_) % site_.count();
  }
  /// Of a round, at a rank of a site of m: results, contributions to own chunks, sums of sites.
  [[nodiscard]] std::uint64_t slots_at(std::uint64_t m) const {
    const std::uint64_t k = site_.count();
    const std::uint64_t owned = divide_up(round_, m);
    const std::uint64_t added = k > 2 ? std::min(owned, divide_up(round_, k)) : 0;
    return round_ * results() + owned * (m - 1) + added * (k - 1);
  }

  static std::uint32_t channel(const Chunk& c, std::uint32_t of_chunk) {
    return static_cast<std::uint32_t>(4 * c.number + of_chunk);
  }
  [[nodiscard]] std::uint32_t result_channel(const Chunk& c, std::size_t result) const {
    return channel(c, static_cast<std::uint32_t>(4 - results() + result));
  }

  [[nodiscard]] Chunk chunk(std::uint64_t number) {
    Chunk c;
    c.number = number;
    c.begin = number * chunk_;
    c.count = std::min(chunk_, values_ - c.begin);
    c.owner = owner(number, site_.home);
    for (std::size_t i = 0; i < results(); ++i) c.results.push_back({next_slot_++, 0});
    c.own = c.results[results() == 1 ? 0 : site_.home].slot;
    return c;
  }

  [[nodiscard]] Range codes(const Chunk& c, std::uint64_t slot) const {
    return scratch(slot * slot_bytes_, quantised_bytes(c.count, args_.quantisation));
  }
  static Range in(const Chunk& c) { return input(0, c.begin * kValueBytes, c.count * kValueBytes); }
  static Range out(const Chunk& c) {
    return output(0, c.begin * kValueBytes, c.count * kValueBytes);
  }

  std::uint32_t send(std::uint32_t peer, std::uint32_t channel, const Chunk& c, Codes from) {
    return builder_.send(peer, channel, codes(c, from.slot), {{from.ready}, -1});
  }
  /// Into a slot that an earlier round may still use.
  Codes recv(std::uint32_t peer, std::uint32_t channel, const Chunk& c, std::uint64_t slot) {
    return {slot,
            builder_.recv(peer, channel, codes(c, slot), {std::exchange(users_[slot], {}), -1})};
  }
  /// Into the slot of codes that this rank has sent. One that sends its answer too early must not
  /// have it written over what has not been read yet.
  Codes recv_over(std::uint32_t peer, std::uint32_t channel, const Chunk& c, Codes old) {
    return {old.slot, builder_.recv(peer, channel, codes(c, old.slot), {{old.ready}, -1})};
  }

  Codes code_input(const Chunk& c) {
    Steps before = std::exchange(users_[c.own], {});
    for (const auto& [owner, sent] : left_) {
      if (c.owner == args_.rank || c.owner == owner) before.push_back(sent);
    }
    return {c.own, builder_.code(StepKind::quantise, in(c), codes(c, c.own), std::move(before))};
  }
  /// The output becomes the sum of all; `last`: their last one, so an average is divided. Returns
  /// the step that makes it.
  std::uint32_t add(const Chunk& c, const std::vector<Codes>& all, Builder::Last last) {
    Steps before{c.read};
    for (const Codes& one : all) {
      const bool is_last = &one == &all.back();
      if (before.back() != one.ready) before.push_back(one.ready);
      const auto kind = &one == &all.front() ? StepKind::dequantise : StepKind::add_dequantised;
      before = {builder_.code(kind, codes(c, one.slot), out(c), before,
                              is_last ? last : Builder::Last::no)};
      users_[one.slot] = before;
    }
    return before[0];
  }
  /// The same, and its codes into the slot of the own ones.
  Codes code_sum(Chunk& c, const std::vector<Codes>& all, Builder::Last last) {
    const std::uint32_t added = add(c, all, last);
    c.read = builder_.code(StepKind::quantise, out(c), codes(c, c.own), {added});
    return {c.own, c.read};
  }

  void contribute(Chunk& c) {
    const Codes own = code_input(c);
    c.read = own.ready;
    leaves(c, send(c.owner, channel(c, 0), c, own));
  }

  /// By this step the kernel takes what this rank has coded of its own values.
  void leaves(const Chunk& c, std::uint32_t sent) {
    leaving_[c.number / round_ % leaving_.size()].emplace_back(c.owner, sent);
  }

  void collect(Chunk& c) {
    for (std::size_t i = 0; i < results(); ++i) {
      Codes& result = c.results[i];
      result = result.slot == c.own ? recv_over(c.owner, result_channel(c, i), c, {c.own, c.read})
                                    : recv(c.owner, result_channel(c, i), c, result.slot);
    }
    finish(c);
  }

  void finish(Chunk& c) { add(c, c.results, Builder::Last::no); }

  /// A chunk of which this rank is an owner. Adds in the output, also where that is the input, of
  /// which the own codes are made first.
  void reduce(Chunk& c) {
    const Codes sum = sum_of_site(c);
    Steps sent;  // to owners that do not answer
    if (site_.count() == 1) {
      c.results[0] = sum;
    } else if (site_.count() == 2) {
      const std::size_t other = 1 - site_.home;
      const std::uint32_t peer = owner(c.number, other);
      sent.push_back(send_sum(peer, c, sum));
      c.results[site_.home] = sum;
      c.results[other] = recv(peer, channel(c, 1), c, c.results[other].slot);
    } else {
      c.results[0] = sum_of_all(c, sum, sent);
    }
    finish(c);
    users_[c.own].insert(users_[c.own].end(), sent.begin(), sent.end());
    for (std::size_t i = 0; i < results(); ++i) {
      const Codes& result = c.results[i];
      for (std::uint32_t d = 1; d < site_.size(); ++d) {
        users_[result.slot].push_back(send(site_.mate(d), result_channel(c, i), c, result));
      }
    }
  }

  /// The sum of this site, to an owner at another one.
  std::uint32_t send_sum(std::uint32_t peer, const Chunk& c, Codes sum) {
    const std::uint32_t sent = send(peer, channel(c, 1), c, sum);
    if (site_.size() == 1) leaves(c, sent);  // nothing else of this rank's values leaves
    return sent;
  }

  Codes sum_of_site(Chunk& c) {
    const Codes own = code_input(c);
    c.read = own.ready;
    if (site_.size() == 1 && args_.reduce != ReduceOp::avg) return own;
    std::vector<Codes> all;
    for (const std::uint32_t mate : site_.mates()) {
      all.push_back(mate == args_.rank ? own : recv(mate, channel(c, 0), c, next_slot_++));
    }
    return code_sum(c, all, Builder::Last::yes);
  }

  Codes sum_of_all(Chunk& c, Codes sum, Steps& sent) {
    const std::size_t adding = adding_site(c.number);
    if (adding != site_.home) {
      const std::uint32_t adder = owner(c.number, adding);
      send_sum(adder, c, sum);
      return recv_over(adder, channel(c, 2), c, sum);
    }
    std::vector<Codes> all;
    for (std::size_t site = 0; site < site_.count(); ++site) {
      all.push_back(
          site == site_.home ? sum : recv(owner(c.number, site), channel(c, 1), c, next_slot_++));
    }
    const Codes total = code_sum(c, all, Builder::Last::no);
    for (std::size_t site = 0; site < site_.count(); ++site) {
      if (site != site_.home) sent.push_back(send(owner(c.number, site), channel(c, 2), c, total));
    }
    return total;
  }

  const CollectiveArgs& args_;
  Builder builder_;
  std::uint64_t values_;
  OwnSite site_;
  std::uint64_t round_;      // chunks
  std::uint64_t slots_ = 1;  // of a round
  std::uint64_t chunk_ = 0;  // values
  std::uint64_t chunks_ = 0;
  std::uint64_t window_ = 1;  // rounds under way at once
  std::uint64_t slot_bytes_ = 0;
  std::uint64_t next_slot_ = 0;  // of this round
  std::vector<Sent> leaving_;    // what was coded in the last rounds
  Sent left_;                    // of the round before these
  std::vector<Steps> users_;     // by slot: the steps after which it may be written again
};

}  // namespace

Schedule quantised_all_reduce(const CollectiveArgs& args, QuantisedChunks chunks) {
  return Quantised(args, chunks).build();
}

Schedule quantised_all_reduce(const CollectiveArgs& args) {
  return quantised_all_reduce(args, QuantisedChunks{});
}

}  // namespace pccl
