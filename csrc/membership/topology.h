// In which order data go round: the ring whose slowest link is the fastest (fastest_ring.h), by
// what the members have measured of their links. The master has pairs of members measure while the
// run goes on, no process two links at a time; once all pairs of a peer group are known it looks
// for the fastest ring, and now and then it has a pair measured again, because links change.
//
// A new order begins with an epoch. Where none begins by itself, a boundary is made to vote for a
// ring that is much better than the present one, and not often: a vote costs all members the hash
// of their state. Source: the PCCL report (arXiv:2505.14065, section 2.4) measures all pairs and
// solves the asymmetric travelling salesman problem while the members stand still.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace pccl::master {

/// Peer groups of fewer members have one ring, those of more keep rank order: the number of pairs
/// grows with the square.
inline constexpr std::size_t kMeasuredLeast = 4;
inline constexpr std::size_t kMeasuredMost = 256;

class Topology {
 public:
  using Pair = std::pair<PeerId, PeerId>;  // sender, receiver

  /// The epoch that runs from now on: each peer group's members in the order of its ring, and the
  /// pairs without a link of their own. What was measured of other peers is forgotten.
  void begin(std::map<std::uint32_t, std::vector<PeerId>> rings, std::set<Pair> apart,
             std::uint64_t now_s);
  /// Called about once a second while the epoch runs: the pairs to measure now. Each is answered by
  /// `measured`; without an answer for kSilentS its link counts as one that carries nothing.
  [[nodiscard]] std::vector<Pair> next(std::uint64_t now_s);
  /// What `from` has measured of its link to `to`: bytes a second (0: it carries nothing) and the
  /// time there and back. An answer that was not asked for changes nothing.
  void measured(PeerId from, PeerId to, std::uint64_t rate, std::uint64_t trip_us,
                std::uint64_t now_s);
  /// Are there links that have still to be measured for the first time?
  [[nodiscard]] bool lacks() const;
  /// Is a ring known that is worth a vote?
  [[nodiscard]] bool wants_vote() const { return wants_vote_; }
  /// The order in which data of the members `mates`, given in rank order, are to go round: the best
  /// that is known, with newcomers at its end.
  [[nodiscard]] std::vector<PeerId> ring(std::uint32_t group,
                                         const std::vector<PeerId>& mates) const;
  /// For the log: how much better the ring of this peer group is that `ring` returns; empty: it is
  /// the present one.
  [[nodiscard]] std::string why(std::uint32_t group) const;

 private:
  struct Link {
    std::uint64_t rate = 0;
    std::uint64_t trip_us = 0;
    std::uint64_t at_s = 0;
  };
  /// Of a ring.
  struct Worth {
    std::uint64_t slowest = 0;  // bytes a second of its slowest link
    std::uint64_t time = 0;     // of a byte on its way round, in 2^-50 s
  };
  struct Group {
    std::vector<PeerId> ring;  // the present one
    std::vector<PeerId> best;  // empty: none better than `ring` is known
    bool much_better = false;  // is `best`
    Worth worth;
    Worth best_worth;
    bool known = false;         // all pairs have been measured
    bool changed = true;        // since `best` was looked for
    std::uint64_t again_s = 0;  // when a pair is measured again
    bool of_ring = false;       // the last one of these was one of the ring
  };
  [[nodiscard]] static bool better(const Worth& a, const Worth& b, std::uint64_t percent);
  [[nodiscard]] bool is_apart(const Pair& pair) const {
    return apart_.contains(pair) || apart_.contains({pair.second, pair.first});
  }
  [[nodiscard]] bool ask_new(Group& group, std::set<PeerId>& busy, std::uint64_t now_s,
                             std::vector<Pair>& out);
  void ask_again(Group& group, std::set<PeerId>& busy, std::uint64_t now_s, std::vector<Pair>& out);
  void ask(Pair pair, std::set<PeerId>& busy, std::uint64_t now_s, std::vector<Pair>& out);
  void look_for_best(Group& group);

  std::map<std::uint32_t, Group> groups_;
  std::set<Pair> apart_;
  std::map<Pair, Link> links_;
  std::map<Pair, std::uint64_t> asked_;  // since when
  std::uint64_t not_before_s_ = 0;       // the next vote
  bool wants_vote_ = false;
};

}  // namespace pccl::master
