// In which order data go round: the ring whose slowest link is the fastest (fastest_ring.h), by
// what the members have measured of their links. The master has pairs of members measure while the
// run goes on, no process two links at a time, looks for the fastest ring among the members whose
// links are all known, and now and then has links measured again, because they change.
//
// A new order begins with an epoch. Where none begins by itself, a boundary is made to vote for a
// ring that is much better than the present one, also when the links in which the two differ are
// measured once more (of many numbers with errors the best ones are the luckiest), and not often: a
// vote costs all members the hash of their state. Source: the PCCL report (arXiv:2505.14065,
// section 2.4) measures all pairs and solves the asymmetric travelling salesman problem while the
// members stand still.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/sites.h"
#include "membership/fastest_ring.h"

namespace pccl::master {

/// Peer groups of fewer members have one ring. Those of more are not measured, nor are groups
/// beyond so many pairs in all: the number of pairs grows with the square. They keep their order.
inline constexpr std::size_t kMeasuredLeast = 4;
inline constexpr std::size_t kMeasuredMost = 256;
inline constexpr std::size_t kMeasuredPairsMax = 1U << 17;

class Topology {
 public:
  using Pair = std::pair<PeerId, PeerId>;  // sender, receiver
  /// `from` is to measure its link to `to`. If operations show within some seconds that the link
  /// carries about as much as is `known`, in bytes a second, that is the answer, and nothing is
  /// sent to measure; 0: it is measured in any case.
  struct Question {
    PeerId from;
    PeerId to;
    std::uint64_t known = 0;
  };

  /// The epoch that runs from now on: each peer group's members in the order of its ring, and the
  /// pairs without a link of their own. What was measured of other peers is forgotten.
  void begin(std::map<std::uint32_t, std::vector<PeerId>> rings, std::set<Pair> apart,
             std::uint64_t now_s);
  /// The members of this peer group, which are far from each other, go by this rate while the epoch
  /// runs: when another one is known, that is worth a vote, but for no other ring. True: they went
  /// by quite another one, or by none, before.
  bool told(std::uint32_t group, std::uint32_t mbit);
  /// Called about once a second while the epoch runs: the links to measure now. Each is answered by
  /// `measured`; one without an answer after kSilentLooks calls could not be measured.
  [[nodiscard]] std::vector<Question> next(std::uint64_t now_s);
  /// What `from` has measured of its link to `to`: bytes a second (0: the link could not be
  /// measured) and the time there and back. An answer that was not asked for changes nothing. What
  /// was known of a link that could not be measured holds until that happens a second time.
  void measured(PeerId from, PeerId to, std::uint64_t rate, std::uint64_t trip_us,
                std::uint64_t now_s);
  /// Are there links that have still to be measured for the first time?
  [[nodiscard]] bool lacks() const;
  /// Is a ring known that is worth a vote, or a rate?
  [[nodiscard]] bool wants_vote() const;
  /// The order in which data of the members `mates`, given in rank order, are to go round: the best
  /// that is known, with newcomers at its end.
  [[nodiscard]] std::vector<PeerId> ring(std::uint32_t group,
                                         const std::vector<PeerId>& mates) const;
  /// Of the links over which each member sends, the slowest that has been measured. For people.
  struct Slowest {
    PeerId to;
    std::uint64_t rate = 0;
    std::uint64_t trip_us = 0;
  };
  [[nodiscard]] std::map<PeerId, Slowest> slowest() const;
  /// Mbit/s of the slowest link of the group's members to each other; 0: not known. While links of
  /// newcomers are not measured, kMbitAssumed at most.
  [[nodiscard]] std::uint32_t mbit(std::uint32_t group) const;
  /// Is an all-reduce in two levels (collectives/two_level_all_reduce.cpp) no slower than round
  /// this ring, by what is measured? It goes over all pairs of two sites; a ring may leave a slow
  /// one out.
  [[nodiscard]] bool may_cross(const std::vector<PeerId>& ring, const Sites& sites) const;
  /// For the log: how much better the ring of this peer group is that `ring` returns; empty: it is
  /// the present one.
  [[nodiscard]] std::string why(std::uint32_t group) const;

 private:
  struct Link {
    std::uint64_t rate = 0;
    std::uint64_t trip_us = 0;
    std::uint64_t at_s = 0;
    bool failed = false;  // could not be measured the last time
    std::uint64_t rate_before = 0;
    std::uint64_t again = 0;  // so often it was to be measured again as a link of the ring
  };
  /// Of a ring.
  struct Worth {
    std::uint64_t slowest = 0;  // bytes a second of its slowest link
    std::uint64_t time = 0;     // of a byte on its way round, in 2^-50 s
  };
  struct Group {
    std::vector<PeerId> ring;  // the present one
    std::vector<PeerId> best;  // empty: none better than `ring` is known
    Worth worth;
    Worth best_worth;
    bool is_measured = false;
    bool known = false;  // all pairs
    std::uint64_t lacks_since_s = 0;
    bool changed = true;                // since `best` was looked for
    std::size_t confirms = 0;           // so often `to_confirm` was measured, or is being measured
    bool much_better = false;           // is `best`, and confirmed
    std::optional<std::uint32_t> told;  // Mbit/s by which far members go, 0: by none
    std::optional<std::uint32_t> told_before;  // in the epoch before
    std::uint64_t rate = 0;                    // bytes a second of the slowest link
    std::set<Pair> alone;          // the slowest ones, each to be measured beside no other one
    std::uint64_t alone_rate = 0;  // of those of them that are measured
    bool votes_for_rate = false;   // since it is not the one that was told
    std::uint64_t rate_s = 0;      // when it is looked for again
    std::uint64_t rate_wait_s = 0;
    std::set<Pair> to_confirm;    // measured once more before a vote
    std::uint64_t part_s = 0;     // when `best` is looked for though not all pairs are known
    std::uint64_t confirm_s = 0;  // before then nothing is confirmed
    std::uint64_t unsure_s = 0;   // from the last ring that was looked at again to the next one
    std::uint64_t again_s = 0;    // when links are measured again
    bool of_ring = false;         // the last of these were of the ring
  };
  [[nodiscard]] static bool better(const Worth& a, const Worth& b, std::uint64_t percent);
  [[nodiscard]] bool is_apart(const Pair& pair) const {
    return apart_.contains(pair) || apart_.contains({pair.second, pair.first});
  }
  [[nodiscard]] bool is_known(const Pair& pair) const {
    return links_.contains(pair) || is_apart(pair);
  }
  using Questions = std::vector<Question>;
  bool ask(const Pair& pair, std::set<PeerId>& busy, Questions& out, std::uint64_t known = 0);
  void ask_new(Group& group, std::set<PeerId>& busy, Questions& out);
  void ask_again(Group& group, std::set<PeerId>& busy, std::uint64_t now_s, Questions& out);
  [[nodiscard]] std::vector<PeerId> known_members(const Group& group) const;
  [[nodiscard]] bool look_is_due(const Group& group, std::uint64_t now_s) const;
  void look(Group& group, std::uint64_t now_s);
  void confirm(Group& group);
  [[nodiscard]] bool is_measuring(const Group& group) const;
  void look_for_rate(Group& group, std::uint64_t now_s);
  void measured_alone(Group& group, const Pair& pair, std::uint64_t rate, std::uint64_t now_s);
  void look_for_best(Group& group, const Rates& rates, const std::vector<PeerId>& members,
                     std::uint64_t now_s);
  [[nodiscard]] Rates rates_of(const std::vector<PeerId>& members) const;
  [[nodiscard]] static Worth worth_of(const Rates& rates, const std::vector<PeerId>& members,
                                      const std::vector<PeerId>& ring);

  std::map<std::uint32_t, Group> groups_;
  std::set<Pair> apart_;
  std::map<Pair, Link> links_;
  std::map<Pair, std::uint64_t> asked_;  // at which call of `next`
  std::uint64_t looks_ = 0;              // calls of `next`
  std::uint32_t looked_at_ = 0;          // the group of which the best ring was looked for last
  std::uint64_t not_before_s_ = 0;       // the next vote for a ring
  std::uint64_t no_rate_before_s_ = 0;   // and for a rate
};

}  // namespace pccl::master
