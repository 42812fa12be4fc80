// All-gather and reduce-scatter in two levels, where ranks stand at sites. In an all-gather a part
// crosses once to each other site; in a reduce-scatter a site's sum crosses once, to the rank that
// it is for.
//
// A rank at another site has a partner here: the rank whose place at this site is its own one
// there, modulo the number of ranks here. All-gather: each rank sends its part to its partners at
// all other sites; within a site the own parts and those from far go round as in a ring.
// Reduce-scatter, the other way: within a site the chunks of all ranks go round as in a ring and
// gather one contribution at each rank, so that each rank ends with the site's sums for itself and
// for those ranks at other sites whose partner it is; it sends them these, and adds to its own sum
// those that come, in the order of the sites after its own. Parts may differ in size, also 0 bytes
// (sent as an empty segment, as in a ring).
//
// A part crosses to k - 1 sites; a sum goes to one rank. The reduce-scatter goes in chunks of all
// parts, so that both levels are busy at once, of which kChunksAtOnce are under way. Partial sums
// are in scratch memory: for each of those chunks two slots for each rank whose chunk ends at one
// place, in turn, and for the sums for far ranks as many less one. Steps: 1 far, m - 1 near. Sent
// by each rank of k equal sites: S (m - 1) / m near, and (k - 1) S / n far.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/own_site.h"

namespace pccl {
namespace {

constexpr std::uint64_t kChunksAtOnce = 4;  // of a reduce-scatter
constexpr std::uint64_t kScratchBytes = 64U << 20;
constexpr std::uint64_t kChunkBytesMin = 256U << 10;
constexpr std::uint64_t kChunkBytesMax = 2U << 20;
constexpr std::uint64_t kScatterStepsMost = 65536;  // chunks times ranks: half of the steps

/// The ranks whose parts come to `place` of a site, or whose sums are made there: the rank there,
/// then those of other sites.
class Partners {
 public:
  explicit Partners(const OwnSite& own) : of_place_(own.size()) {
    for (std::uint32_t place = 0; place < own.size(); ++place) {
      of_place_[place].push_back(own.mates()[place]);
    }
    for (std::uint32_t d = 1; d < own.count(); ++d) {
      const auto& there = own.sites[around(own.home, d, own.count())];
      for (std::size_t i = 0; i < there.size(); ++i) of_place_[i % own.size()].push_back(there[i]);
    }
  }

  [[nodiscard]] const std::vector<std::uint32_t>& of(std::uint32_t place) const {
    return of_place_[place];
  }

 private:
  std::vector<std::vector<std::uint32_t>> of_place_;
};

/// Of the scratch memory of a chunk of a reduce-scatter, at a site of m ranks.
std::uint64_t sets_of(std::uint64_t m) { return std::min<std::uint64_t>(m > 1 ? m - 2 : 0, 2); }
std::uint64_t slots_of(std::uint64_t m, std::uint64_t targets) {
  return m > 1 ? sets_of(m) * targets + targets - 1 : 0;
}

/// The partner of this rank at a site.
std::uint32_t partner(const OwnSite& own, std::uint32_t site) {
  const auto& there = own.sites[site];
  return there[own.place % there.size()];
}

std::uint32_t site_after(const OwnSite& own, std::uint32_t distance) {
  return around(own.home, distance, own.count());
}

/// The place `distance` before this rank's, within the site.
std::uint32_t place_before(const OwnSite& own, std::uint32_t distance) {
  return before(own.place, distance, own.size());
}

}  // namespace

Schedule two_level_all_gather(const CollectiveArgs& args) {
  const OwnSite own(args);
  const Partners partners(own);
  const auto part = [&](std::uint32_t rank) { return output(rank, 0, args.output_bytes[rank]); };
  const Range mine = input(0, 0, args.output_bytes[args.rank]);
  Builder b(args);
  b.copy(mine, part(args.rank));
  for (std::uint32_t d = 1; d < own.count(); ++d) {
    b.send(partner(own, site_after(own, d)), args.rank, mine);
  }
  std::vector<Order> here(args.size);  // by rank: when its part is here
  for (const std::uint32_t rank : partners.of(own.place)) {
    if (rank == args.rank) continue;
    const std::uint32_t received = b.recv(rank, rank, part(rank));
    b.set_turn(received, 1);
    here[rank] = following(received);
  }
  for (std::uint32_t s = 0; s + 1 < own.size(); ++s) {
    for (const std::uint32_t rank : partners.of(place_before(own, s))) {
      b.send(own.mate(1), rank, rank == args.rank ? mine : part(rank), here[rank]);
    }
    for (const std::uint32_t rank : partners.of(place_before(own, s + 1))) {
      const std::uint32_t received = b.recv(own.mate(-1), rank, part(rank));
      b.set_turn(received, s + 2);
      here[rank] = following(received);
    }
  }
  return b.take();
}

namespace {

/// Of a chunk, at any site: all ranks have the same chunks.
std::uint64_t most_slots(const OwnSite& own) {
  std::uint64_t most = 1;
  for (const auto& site : own.sites) {
    std::uint64_t targets = 0;
    for (const auto& other : own.sites) targets += divide_up(other.size(), site.size());
    most = std::max(most, slots_of(site.size(), targets));
  }
  return most;
}

class ReduceScatter {
 public:
  ReduceScatter(const CollectiveArgs& args, OwnSite own, std::uint64_t chunk_bytes)
      : args_(args),
        b_(args),
        own_(std::move(own)),
        partners_(own_),
        targets_(partners_.of(0).size()) {
    const std::uint64_t largest =
        *std::max_element(args.input_bytes.begin(), args.input_bytes.end());
    chunks_ = std::clamp<std::uint64_t>(divide_up(largest, chunk_bytes), 1,
                                        std::max<std::uint64_t>(kScatterStepsMost / args.size, 1));
    slot_bytes_ = part_of(largest, args.element_bytes, chunks_, 0).bytes;
    slots_ = slots_of(own_.size(), targets_);
    free_.resize(std::min(kChunksAtOnce, chunks_) * slots_);
  }

  Schedule build() {
    for (chunk_ = 0; chunk_ < chunks_; ++chunk_) add();
    return b_.take(free_.size() * slot_bytes_);
  }

 private:
  /// What this rank has of a chunk: its own input, then the partial sum, then the site's sum.
  struct Has {
    Range range;
    Order order;
    std::uint64_t slot = ~0ULL;  // none
  };

  [[nodiscard]] Part part(std::uint32_t rank) const {
    return part_of(args_.input_bytes[rank], args_.element_bytes, chunks_, chunk_);
  }
  [[nodiscard]] Range in(std::uint32_t rank) const {
    return input(rank, part(rank).offset, part(rank).bytes);
  }
  [[nodiscard]] std::uint32_t channel(std::uint32_t rank) const {
    return static_cast<std::uint32_t>(chunk_ * args_.size + rank);
  }
  [[nodiscard]] std::uint32_t turn(std::uint32_t step) const {
    return static_cast<std::uint32_t>(chunk_ * own_.most) + step + 1;
  }

  void send(std::uint32_t peer, std::uint32_t rank, const Has& has) {
    const std::uint32_t sent = b_.send(peer, channel(rank), has.range, has.order);
    if (has.slot < free_.size()) free_[has.slot].after = {sent};
  }
  /// In the slot of this chunk with that number.
  Has slot(std::uint64_t number, std::uint32_t rank) const {
    Has has;
    has.slot = chunk_ % kChunksAtOnce * slots_ + number;
    has.range = scratch(has.slot * slot_bytes_, part(rank).bytes);
    return has;
  }

  void add() {
    const std::uint32_t m = own_.size();
    std::vector<Has> has(args_.size);
    for (std::uint32_t rank = 0; rank < args_.size; ++rank) has[rank].range = in(rank);
    const Range result = output(0, part(args_.rank).offset, part(args_.rank).bytes);
    for (std::uint32_t s = 0; s + 1 < m; ++s) {
      for (const std::uint32_t rank : partners_.of(place_before(own_, s + 1))) {
        send(own_.mate(1), rank, has[rank]);
      }
      const bool last = s + 2 == m;
      const auto& receives = partners_.of(place_before(own_, s + 2));
      for (std::size_t i = 0; i < receives.size(); ++i) {
        const std::uint32_t rank = receives[i];
        Has now = last && rank == args_.rank ? Has{result, {}}
                  : last                     ? slot(sets_of(m) * targets_ + i - 1, rank)
                                             : slot(s % 2 * targets_ + i, rank);
        const Order free = now.slot < free_.size() ? std::move(free_[now.slot]) : Order{};
        const bool all = last && own_.count() == 1;
        const std::uint32_t received =
            b_.recv_reduce(own_.mate(-1), channel(rank), in(rank), now.range,
                           Builder::Place::received_second, Builder::last_if(all), free);
        b_.set_turn(received, turn(s));
        now.order = following(received);
        has[rank] = std::move(now);
      }
    }
    for (const std::uint32_t rank : partners_.of(own_.place)) {
      if (rank != args_.rank) send(rank, rank, has[rank]);
    }
    Has mine = has[args_.rank];
    for (std::uint32_t d = 1; d < own_.count(); ++d) {
      const std::uint32_t received = b_.recv_reduce(
          partner(own_, site_after(own_, d)), channel(args_.rank), mine.range, result,
          Builder::Place::received_second, Builder::last_if(d + 1 == own_.count()), mine.order);
      b_.set_turn(received, turn(own_.most - 1));
      mine = {result, following(received)};
    }
  }

  const CollectiveArgs& args_;
  Builder b_;
  OwnSite own_;
  Partners partners_;
  std::uint64_t targets_;  // ranks whose sums are made at a place, at most
  std::uint64_t chunks_ = 1;
  std::uint64_t slot_bytes_ = 0;
  std::uint64_t slots_ = 0;  // of a chunk
  std::vector<Order> free_;  // by slot: when it has been sent
  std::uint64_t chunk_ = 0;  // the one that is added
};

}  // namespace

std::optional<Schedule> two_level_reduce_scatter(const CollectiveArgs& args) {
  OwnSite own(args);
  const std::uint64_t chunk_bytes = kScratchBytes / (kChunksAtOnce * most_slots(own));
  if (chunk_bytes < kChunkBytesMin) return std::nullopt;
  return ReduceScatter(args, std::move(own), std::min(chunk_bytes, kChunkBytesMax)).build();
}

}  // namespace pccl
