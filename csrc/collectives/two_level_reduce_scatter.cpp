// Reduce-scatter in two levels, where ranks stand at sites: a site's sum crosses once, to the rank
// that it is for.
//
// An all-gather in two levels (two_level_all_gather.cpp), the other way: within a site the chunks
// of all ranks go round as in a ring (ring_reduce_scatter.cpp) and gather one contribution at each
// rank, so that each rank ends with the site's sums for itself and for those ranks at other sites
// whose partner it is (partners.h); it sends them these, and adds to its own sum those that come,
// in the order of the sites after its own. Parts may differ in size, also 0 bytes (sent as an empty
// segment, as in a ring).
//
// It goes in chunks of all parts, so that both levels are busy at once, of which kChunksAtOnce are
// under way. Partial sums are in scratch memory: for each of those chunks two slots for each rank
// whose chunk ends at one place, in turn, and for the sums for far ranks as many less one. Steps: 1
// far, m - 1 near. Sent by each rank of k equal sites of m ranks: S (m - 1) / m near, and (k - 1) S
// / n far.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/own_site.h"
#include "collectives/partners.h"

namespace pccl {
namespace {

constexpr std::uint64_t kChunksAtOnce = 4;
constexpr std::uint64_t kScratchBytes = 64U << 20;
constexpr std::uint64_t kChunkBytesMin = 256U << 10;
constexpr std::uint64_t kChunkBytesMax = 2U << 20;
constexpr std::uint64_t kScatterStepsMost = 65536;  // chunks times ranks: half of the steps

/// Of the scratch memory of a chunk, at a site of m ranks.
std::uint64_t sets_of(std::uint64_t m) { return std::min<std::uint64_t>(m > 1 ? m - 2 : 0, 2); }
std::uint64_t slots_of(std::uint64_t m, std::uint64_t targets) {
  return m > 1 ? sets_of(m) * targets + targets - 1 : 0;
}

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
      for (const std::uint32_t rank : partners_.of(own_.place_before(s + 1))) {
        send(own_.mate(1), rank, has[rank]);
      }
      const bool last = s + 2 == m;
      const auto& receives = partners_.of(own_.place_before(s + 2));
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
          partner(own_, own_.site_after(d)), channel(args_.rank), mine.range, result,
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
