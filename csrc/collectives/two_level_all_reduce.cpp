// All-reduce in two levels, where ranks stand at sites: a reduce-scatter within each site, an
// all-reduce of each part between the sites, an all-gather within each site. What crosses a far
// line does so once: of two sites S each way, half of what a ring sends over it, and from all ranks
// of a site at once, not from one.
//
// A site of m ranks cuts the tensor into m parts, one for each of its ranks. Sites may have
// different numbers of ranks, so the cuts of all of them make columns; a column has one rank at
// each site. Two sites exchange their sums and add them in the same order (exchange.cpp); more of
// them cut a column into parts once more (direct.cpp). So all ranks end with the same bits. Within
// a site parts go round as in a ring (ring_all_reduce.cpp), and for its reasons wait for nothing.
//
// The tensor is worked on in chunks, so that both levels are busy at once, with columns that are
// large enough for bulk lanes. A rank keeps what comes from far before its own site is so far; a
// column is sent only when that of the chunk kAheadBytes before it has come from the other sites,
// so it is no more than that. k: sites. Steps: 2 (m - 1) near, 1 far (k > 2: 2). Sent: 2 S (m - 1)
// / m near, S / m far (k > 2: 2 S (k - 1) / (k m)).
#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "base/limits.h"
#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/own_site.h"
#include "collectives/ring.h"

namespace pccl {
namespace {

constexpr std::uint64_t kFarBytes = 256U << 10;  // of a column of equal sites, as it is sent
constexpr std::uint64_t kChunksMost = 64;
constexpr std::uint64_t kChunksOfRanksMost = 4096;  // chunks times ranks of a site: steps
constexpr std::uint64_t kAheadBytes = 64U << 20;
static_assert(kFarBytes > 2 * kSmallSegmentBytesMax);

/// Bytes of a chunk that have one rank at each site.
struct Column {
  Part part;
  std::vector<std::uint32_t> ranks;  // by site
};

class TwoLevels {
 public:
  explicit TwoLevels(const CollectiveArgs& args) : args_(args), b_(args), site_(args) {
    PCCL_ASSERT(site_.count() > 1, site_.count());
  }

  Schedule build() {
    const std::uint64_t bytes = args_.input_bytes.at(0);
    const std::uint64_t chunks = chunks_of(bytes);
    const std::uint64_t part_bytes = std::max<std::uint64_t>(1, bytes / (chunks * least()));
    ahead_ = static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(kAheadBytes / part_bytes, 1, kChunksMost));
    for (std::uint32_t i = 0; i < chunks; ++i) {
      add(i, part_of(bytes, args_.element_bytes, chunks, i));
    }
    return b_.take();
  }

 private:
  /// Ranks of the smallest site, whose parts are the largest ones.
  [[nodiscard]] std::uint64_t least() const {
    std::uint64_t ranks = site_.most;
    for (const auto& site : site_.sites) ranks = std::min<std::uint64_t>(ranks, site.size());
    return ranks;
  }

  [[nodiscard]] std::uint64_t chunks_of(std::uint64_t bytes) const {
    std::set<std::pair<std::uint64_t, std::uint64_t>> cuts;  // numerator and denominator
    for (const auto& site : site_.sites) {
      for (std::uint64_t i = 0; i < site.size(); ++i) {
        const std::uint64_t common = std::gcd(i, site.size());
        cuts.emplace(i / common, site.size() / common);
      }
    }
    const std::uint64_t sends = cuts.size() * (site_.count() > 2 ? site_.count() : 1);
    const std::uint64_t most =
        std::clamp<std::uint64_t>(kChunksOfRanksMost / site_.most, 1, kChunksMost);
    const std::uint64_t chunks = std::clamp<std::uint64_t>(bytes / (sends * kFarBytes), 1, most);
    return std::max(chunks, divide_up(bytes / least(), kAheadBytes));
  }

  void add(std::uint32_t number, Part chunk) {
    chunk_ = chunk;
    channel_ = number * (2 * site_.most + 2 * args_.size);
    turn_ = number / ahead_ * (2 * site_.most + 2);
    const RingOfParts near = near_ring();
    const auto reduced = reduce_half(b_, near, {channel_, turn_ + 1}, Builder::Last::no);
    std::vector<std::uint32_t> summed;  // the step that makes the site's sum of the own part
    if (reduced) summed.push_back(*reduced);
    const std::vector<Column> all = columns();
    came_.emplace_back(all.size());
    for (std::uint32_t c = 0; c < all.size(); ++c) {
      if (all[c].ranks[site_.home] != args_.rank) continue;
      std::vector<std::uint32_t> after = summed;
      if (number >= ahead_ && c < came_[number - ahead_].size()) {
        const std::vector<std::uint32_t>& before = came_[number - ahead_][c];
        after.insert(after.end(), before.begin(), before.end());
      }
      if (site_.count() == 2) {
        exchange(all[c], c, after);
      } else {
        reduce_and_gather(all[c], c, summed, after);
      }
    }
    Order all_summed;
    for (const std::vector<std::uint32_t>& column : came_.back()) {
      all_summed.after.insert(all_summed.after.end(), column.begin(), column.end());
    }
    gather_half(b_, near, {channel_ + site_.most, turn_ + site_.most + 2}, all_summed);
  }

  /// That of the rank at `place` of a site of so many.
  [[nodiscard]] Part part(std::uint32_t place, std::uint64_t mates) const {
    Part p = part_of(chunk_.bytes, args_.element_bytes, mates, place);
    p.offset += chunk_.offset;
    return p;
  }
  /// Of the own site.
  [[nodiscard]] RingOfParts near_ring() const {
    RingOfParts ring;
    ring.next = site_.mate(1);
    ring.previous = site_.mate(-1);
    for (std::uint32_t i = 0; i < site_.size(); ++i) ring.parts.push_back(part(i, site_.size()));
    ring.own = site_.place;
    return ring;
  }
  /// The sum of the own site.
  [[nodiscard]] Range sum(Part p) const { return site_.size() == 1 ? input(p) : output(p); }

  [[nodiscard]] std::vector<Column> columns() const {
    std::vector<std::uint32_t> at(site_.count(), 0);  // by site: whose part it is
    std::vector<Column> all;
    const std::uint64_t chunk_end = chunk_.offset + chunk_.bytes;
    for (std::uint64_t begin = chunk_.offset; begin < chunk_end;) {
      Column column;
      std::uint64_t end = chunk_end;
      for (std::size_t site = 0; site < site_.count(); ++site) {
        const auto end_of_part = [&] {
          const Part p = part(at[site], site_.sites[site].size());
          return p.offset + p.bytes;
        };
        while (end_of_part() <= begin) ++at[site];
        end = std::min(end, end_of_part());
        column.ranks.push_back(site_.sites[site][at[site]]);
      }
      column.part = {begin, end - begin};
      all.push_back(std::move(column));
      begin = end;
    }
    return all;
  }

  [[nodiscard]] std::uint32_t far_channel(std::uint32_t column) const {
    return channel_ + 2 * site_.most + column;
  }

  void exchange(const Column& column, std::uint32_t number,
                const std::vector<std::uint32_t>& after) {
    const std::uint32_t peer = column.ranks[1 - site_.home];
    const std::uint32_t channel = far_channel(number);
    const Range own = sum(column.part);
    const std::uint32_t sent = b_.send(peer, channel, own, {after, -1});
    const auto place =
        site_.home == 0 ? Builder::Place::received_second : Builder::Place::received_first;
    const std::uint32_t received = b_.recv_reduce(peer, channel, own, output(column.part), place,
                                                  Builder::Last::yes, {{sent}, -1});
    b_.set_turn(received, turn_ + site_.most);
    came_.back()[number].push_back(received);
  }

  void reduce_and_gather(const Column& column, std::uint32_t number,
                         const std::vector<std::uint32_t>& summed,
                         const std::vector<std::uint32_t>& after) {
    const std::uint32_t k = site_.count();
    const std::uint32_t channel = far_channel(number);
    const std::uint32_t again = channel + args_.size;
    const auto part_at = [&](std::uint32_t site) {
      Part p = part_of(column.part.bytes, args_.element_bytes, k, site);
      p.offset += column.part.offset;
      return p;
    };
    for (std::uint32_t d = 1; d < k; ++d) {
      const std::uint32_t site = before(site_.home, d, k);
      const Part theirs = part_at(site);
      if (theirs.bytes > 0) {
        b_.send(column.ranks[site], channel, sum(theirs), {after, -1});
      }
    }
    if (const Part mine = part_at(site_.home); mine.bytes > 0) {
      Range own = sum(mine);
      Order order{summed, -1};
      for (std::uint32_t d = 1; d < k; ++d) {
        const std::uint32_t received =
            b_.recv_reduce(column.ranks[around(site_.home, d, k)], channel, own, output(mine),
                           Builder::Place::received_second, Builder::last_if(d + 1 == k), order);
        b_.set_turn(received, turn_ + site_.most);
        own = output(mine);
        order = following(received);
      }
      for (std::uint32_t d = 1; d < k; ++d) {
        b_.send(column.ranks[around(site_.home, d, k)], again, own, order);
      }
      came_.back()[number].push_back(static_cast<std::uint32_t>(order.follows));
    }
    for (std::uint32_t d = 1; d < k; ++d) {
      const std::uint32_t site = before(site_.home, d, k);
      const Part theirs = part_at(site);
      if (theirs.bytes == 0) continue;
      const std::uint32_t received = b_.recv(column.ranks[site], again, output(theirs));
      b_.set_turn(received, turn_ + site_.most + 1);
      came_.back()[number].push_back(received);
    }
  }

  const CollectiveArgs& args_;
  Builder b_;
  OwnSite site_;
  std::uint32_t ahead_ = 1;  // chunks
  Part chunk_;               // the one that is added
  std::uint32_t channel_ = 0;
  std::uint32_t turn_ = 0;
  /// By chunk and column: the steps with what came from far.
  std::vector<std::vector<std::vector<std::uint32_t>>> came_;
};

}  // namespace

Schedule two_level_all_reduce(const CollectiveArgs& args) {
  if (args.input_bytes.at(0) == 0) return {};
  return TwoLevels(args).build();
}

}  // namespace pccl
