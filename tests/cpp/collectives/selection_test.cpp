#include "base/assert.h"
#include "base/fnv.h"
#include "base/protocol.h"
#include "collectives/schedule.h"
#include "runner.h"

namespace pccl::test {
namespace {

constexpr std::uint64_t kRingElements = 33'001;   // above 256 KiB
constexpr std::uint64_t kChainElements = 70'003;  // above 512 KiB

const std::vector<OpKind> kOpKinds{OpKind::all_reduce,     OpKind::reduce,     OpKind::broadcast,
                                   OpKind::all_gather,     OpKind::gather,     OpKind::scatter,
                                   OpKind::reduce_scatter, OpKind::all_to_all, OpKind::barrier};

bool rooted(OpKind kind) {
  return kind == OpKind::reduce || kind == OpKind::broadcast || kind == OpKind::gather ||
         kind == OpKind::scatter;
}

TEST(Selection, EveryKindIsRightFor1To9RanksAndEveryRoot) {
  for (const OpKind kind : kOpKinds) {
    for (std::uint32_t size = 1; size <= 9; ++size) {
      for (std::uint32_t root = 0; root < (rooted(kind) ? size : 1); ++root) {
        for (const std::uint64_t count : {0, 1, 3, 64, 129}) {
          for (const bool in_place : {false, true}) {
            run_and_check({.kind = kind,
                           .size = size,
                           .root = root,
                           .in_place = in_place,
                           .counts = {count},
                           .seed = count + size},
                          build_schedule);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Selection, EveryKindIsRightForLargeBuffers) {
  for (const OpKind kind : kOpKinds) {
    const bool chained = kind == OpKind::reduce || kind == OpKind::broadcast;
    for (const std::uint32_t size : {1U, 2U, 3U, 4U, 5U, 8U, 9U}) {
      run_and_check({.kind = kind,
                     .size = size,
                     .root = size - 1,
                     .in_place = size % 2 == 0,
                     .counts = {chained ? kChainElements : kRingElements},
                     .segment_bytes = 4096},
                    build_schedule);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Selection, UnequalPartsAreRightLargeAndSmall) {
  for (const OpKind kind : {OpKind::all_gather, OpKind::gather, OpKind::scatter,
                            OpKind::reduce_scatter, OpKind::all_to_all}) {
    for (std::uint32_t size = 1; size <= 9; ++size) {
      for (const std::uint64_t scale : {1, 3000}) {
        run_and_check({.kind = kind,
                       .size = size,
                       .root = size / 2,
                       .counts = {7 * scale, 0, scale, 0, 2 * scale, 31, 9 * scale, 1, 4 * scale},
                       .segment_bytes = scale == 1 ? 32U : 4096U},
                      build_schedule);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Selection, AnAverageIsDividedOnceByEveryAlgorithm) {
  for (const OpKind kind : {OpKind::all_reduce, OpKind::reduce, OpKind::reduce_scatter}) {
    for (std::uint32_t size = 1; size <= 5; ++size) {
      for (const std::uint64_t count : {std::uint64_t{5}, kRingElements, kChainElements}) {
        run_and_check({.kind = kind,
                       .reduce = ReduceOp::avg,
                       .size = size,
                       .counts = {count},
                       .segment_bytes = 8192},
                      build_schedule);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Selection, AllReduceOfLittleTakesFewStepsAndOfMuchFewBytes) {
  const auto sent = [](std::uint64_t count) {
    std::uint64_t bytes = 0;
    const Case c{.kind = OpKind::all_reduce, .size = 4, .counts = {count}};
    for (const Step& s : build_schedule(args_of(c, 0)).steps) {
      if (s.kind == StepKind::send) bytes += s.from.bytes;
    }
    return bytes;
  };
  EXPECT_EQ(sent(4096), 2 * 4096 * 8U);          // log2 n times S
  EXPECT_EQ(sent(8192), 2 * 8192 * 8U * 3 / 4);  // 2 S (n - 1) / n
}

std::uint32_t turns(OpKind kind, std::uint32_t size, std::uint64_t count, Lines lines = {}) {
  const Case c{.kind = kind, .size = size, .counts = {count}, .lines = lines};
  std::uint32_t most = 0;
  for (const Step& s : build_schedule(args_of(c, 0)).steps) most = std::max(most, s.turn);
  return most;
}

TEST(Selection, AllReduceOfTheMiddleTakesTwoSteps) {
  constexpr std::uint64_t kMiddle = (256U << 10) / 8;
  for (const std::uint32_t size : {3U, 4U, 8U, 63U, 64U}) {
    EXPECT_EQ(turns(OpKind::all_reduce, size, kMiddle), 2U) << size;
    EXPECT_EQ(turns(OpKind::all_reduce, size, kMiddle + 1), 2 * (size - 1)) << size;
  }
  for (const std::uint32_t size : {65U, 128U}) {
    EXPECT_EQ(turns(OpKind::all_reduce, size, size * 512U), 2U) << size;
    EXPECT_EQ(turns(OpKind::all_reduce, size, size * 512U + 1), 2 * (size - 1)) << size;
  }
}

TEST(Selection, LargeOperationsOfThreeRanksOfAMachineAndMoreGoThroughAreas) {
  const auto areas = [](const Case& c) {
    const std::uint32_t rows = build_schedule(args_of(c, 0)).area_rows;
    for (std::uint32_t rank = 1; rank < c.size; ++rank) {
      EXPECT_EQ(build_schedule(args_of(c, rank)).area_rows, rows) << "all ranks alike";
    }
    return rows > 0;
  };
  const Lines local{.local = true};
  for (const std::uint32_t size : {2U, 3U, 4U, 11U, 12U, kAreaRanksMax, kAreaRanksMax + 1}) {
    const std::uint64_t least = size * kAreaBytesMinPerRank / 8;
    const Case c{.kind = OpKind::all_reduce, .size = size, .counts = {least}, .lines = local};
    EXPECT_EQ(areas(c), size > 2 && size <= kAreaRanksMax) << size;
    Case less = c;
    less.counts = {least - 1};
    EXPECT_FALSE(areas(less)) << size;
    Case elsewhere = c;
    elsewhere.lines = {};
    EXPECT_FALSE(areas(elsewhere)) << size;
    for (const OpKind kind : {OpKind::all_gather, OpKind::reduce_scatter}) {
      Case parts{.kind = kind, .size = size, .counts = {least / size}, .lines = local};
      const std::uint32_t most = kind == OpKind::all_gather ? kAreaRanksMax : 11;
      EXPECT_EQ(areas(parts), size > 2 && size <= most) << size;
      parts.counts.assign(size, least / size);
      parts.counts.back() += 1;
      EXPECT_FALSE(areas(parts)) << size << ", parts that differ";
      parts.counts = {least / size - 1};
      EXPECT_FALSE(areas(parts)) << size;
      parts.counts = {least / size};
      parts.lines = {};
      EXPECT_FALSE(areas(parts)) << size;
    }
  }
}

/// Bytes between machines, by machine.
struct Crossing {
  std::vector<std::uint64_t> leaves;
  std::vector<std::uint64_t> comes;
};

/// `known`: the ranks know their machines.
Crossing crossing(OpKind kind, const Sites& machines, const std::vector<std::uint64_t>& counts,
                  bool known) {
  Case c{.kind = kind,
         .size = static_cast<std::uint32_t>(machines.size()),
         .counts = counts,
         .lines = {.farthest_us = 200, .neighbour_us = 100}};
  if (known) c.lines.sites = machines;
  Crossing found{std::vector<std::uint64_t>(machines.size()),
                 std::vector<std::uint64_t>(machines.size())};
  for (std::uint32_t rank = 0; rank < c.size; ++rank) {
    for (const Step& s : build_schedule(args_of(c, rank)).steps) {
      if (s.kind != StepKind::send || machines[rank] == machines[s.peer]) continue;
      found.leaves[machines[rank]] += s.from.bytes;
      found.comes[machines[s.peer]] += s.from.bytes;
    }
  }
  return found;
}

TEST(Selection, LargeCallsBetweenMachinesGoInTwoLevels) {
  constexpr std::uint64_t kMiddle = (256U << 10) / 8;  // of one tensor, and of four parts together
  for (const OpKind kind : {OpKind::all_reduce, OpKind::all_gather, OpKind::reduce_scatter}) {
    const std::uint64_t parts = kind == OpKind::all_reduce ? 1 : 4;
    const auto sends = [&](std::uint64_t count, bool known) {
      const auto leaves = crossing(kind, {0, 0, 1, 1}, {count / parts}, known).leaves;
      return (leaves[0] + leaves[1]) / 8;
    };
    EXPECT_EQ(sends(kMiddle, true), sends(kMiddle, false)) << "two steps, as without machines";
    constexpr std::uint64_t kMuch = 4 * kMiddle;
    // What leaves the two machines: each sends a tensor's bytes once, a half of it of a gather.
    EXPECT_EQ(sends(kMuch, true), (parts == 1 ? 2 : 1) * kMuch) << kind_name(kind);
    EXPECT_EQ(sends(kMuch, false), 3 * kMuch / (parts == 1 ? 1 : 2));
  }
}

TEST(Selection, BetweenMachinesNoMoreCrossesThanInARing) {
  const auto most = [](OpKind kind, const Sites& machines, const std::vector<std::uint64_t>& counts,
                       bool known) {
    const auto [leaves, comes] = crossing(kind, machines, counts, known);
    return std::max(*std::ranges::max_element(leaves), *std::ranges::max_element(comes));
  };
  for (const Sites& machines : std::vector<Sites>{
           {0, 0, 1, 1},
           {0, 0, 0, 1},
           {0, 1, 0, 1},
           {0, 0, 1, 1, 2, 2, 3, 3},
           {0, 1, 2, 3, 4, 5, 6, 7, 7},
           {0, 0, 0, 0, 1, 2, 3, 4},
           {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3},
       }) {
    const std::size_t n = machines.size();
    std::vector<std::uint64_t> one_large(n, 1000);
    one_large[n / 2] = 200'000;
    for (const OpKind kind : {OpKind::all_reduce, OpKind::all_gather, OpKind::reduce_scatter}) {
      for (const auto& counts : {std::vector<std::uint64_t>{200'000}, one_large}) {
        if (kind == OpKind::all_reduce && counts.size() > 1) continue;
        EXPECT_LE(most(kind, machines, counts, true), most(kind, machines, counts, false))
            << kind_name(kind) << " of " << n << (counts.size() > 1 ? ", one part is large" : "");
      }
    }
  }
}

TEST(Selection, TwoRanksExchangeUpToAMebibyteOverAnyLine) {
  for (const Lines& lines : {Lines{}, Lines{1'000, 1'000}, Lines{2'000, 2'000},
                             Lines{80'000, 80'000, 10}, Lines{80'000, 80'000, 20'000}}) {
    for (const std::uint64_t kib : {33U, 64U, 256U, 257U, 1024U}) {
      EXPECT_EQ(turns(OpKind::all_reduce, 2, kib * 128, lines), 1U) << kib;
    }
  }
  EXPECT_EQ(turns(OpKind::all_reduce, 2, 1024 * 128 + 1), 2U);
}

TEST(Selection, OverAShortLineAPartGoesInSeveralSegments) {
  const auto segment_kib = [](OpKind kind, std::uint32_t size, std::uint64_t kib, Lines lines) {
    const Case c{.kind = kind, .size = size, .counts = {kib * 128}, .lines = lines};
    const std::uint64_t bytes = build_schedule(args_of(c, 0)).segment_bytes;
    for (std::uint32_t rank = 1; rank < size; ++rank) {
      EXPECT_EQ(build_schedule(args_of(c, rank)).segment_bytes, bytes) << "all ranks alike";
    }
    return bytes >> 10;
  };
  EXPECT_EQ(segment_kib(OpKind::all_reduce, 2, 1025, {}), 128U);
  EXPECT_EQ(segment_kib(OpKind::all_reduce, 2, 2048, {}), 256U);
  EXPECT_EQ(segment_kib(OpKind::all_reduce, 4, 6000, {}), 256U);
  EXPECT_EQ(segment_kib(OpKind::all_reduce, 2, 8192, {}), 1024U);
  EXPECT_EQ(segment_kib(OpKind::all_reduce, 2, 65536, {}), 1024U);
  EXPECT_EQ(segment_kib(OpKind::all_gather, 2, 2048, {}), 512U) << "a part of 2 MiB";
  EXPECT_EQ(segment_kib(OpKind::reduce_scatter, 2, 2048, {}), 512U);
  for (const OpKind kind : {OpKind::all_reduce, OpKind::all_gather, OpKind::reduce_scatter}) {
    EXPECT_EQ(segment_kib(kind, 4, 4096, {2'000, 2'000}), 1024U) << "a long line has slices";
  }
  for (const OpKind kind : {OpKind::all_gather, OpKind::reduce_scatter}) {
    const Case c{.kind = kind, .size = 2, .counts = {64U << 10, 48U << 10}};
    EXPECT_EQ(build_schedule(args_of(c, 0)).segment_bytes, kSegmentBytesMax)
        << "parts that differ: a part is one segment, and another size is seen at once";
  }
}

TEST(Selection, ALongerLineNeverTakesMoreSteps) {
  for (const std::uint32_t size : {2U, 3U, 4U, 5U, 8U, 16U}) {
    for (const std::uint64_t kib : {1, 32, 33, 64, 128, 256, 257, 1024, 8192}) {
      std::uint32_t most = turns(OpKind::all_reduce, size, kib * 128, {1'999, 1'999});
      for (const std::uint32_t trip :
           {2'000U, 3'000U, 5'000U, 10'000U, 20'000U, 80'000U, 300'000U}) {
        const std::uint32_t now = turns(OpKind::all_reduce, size, kib * 128, {trip, trip});
        EXPECT_LE(now, most) << size << " ranks, " << kib << " KiB, " << trip << " us";
        most = now;
      }
    }
  }
}

/// Of what the ranks must agree on: all that two of them send, and in which segments.
class ChoiceDigest {
 public:
  void add_sends(const Case& c, Quantisation how = Quantisation::none) {
    for (const std::uint32_t rank : {0U, c.size - 1}) {
      CollectiveArgs args = args_of(c, rank);
      args.quantisation = how;
      if (how != Quantisation::none) args.element_bytes = sizeof(float);
      const Schedule schedule = build_schedule(args);
      fnv_.add(schedule.segment_bytes);
      for (const Step& s : schedule.steps) {
        if (s.kind != StepKind::send) continue;
        fnv_.add(s.peer);
        fnv_.add(s.channel);
        fnv_.add(s.from.offset);
        fnv_.add(s.from.bytes);
      }
    }
  }
  [[nodiscard]] std::uint64_t value() const { return fnv_.value(); }

 private:
  Fnv1a fnv_;
};

TEST(Selection, AnotherChoiceIsAnotherProtocolVersion) {
  ChoiceDigest digest;
  for (const OpKind kind : kOpKinds) {
    for (const std::uint32_t size : {2U, 3U, 4U, 7U, 64U, 65U}) {
      for (const std::uint64_t kib : {1, 32, 33, 64, 256, 257, 512, 1024, 4096}) {
        for (const std::uint32_t trip : {0U, 2'000U, 20'000U, 80'000U}) {
          for (const std::uint32_t mbit : {0U, 10U, 1'000U, 20'000U}) {
            digest.add_sends(
                {.kind = kind, .size = size, .counts = {kib * 128}, .lines = {trip, trip, mbit}});
            // Ranks 0 and 1 at one site, the others at another one.
            Sites sites(size, 1);
            sites[0] = sites[1] = 0;
            if (size > 2) {
              const Case c{.kind = kind,
                           .size = size,
                           .counts = {kib * 128},
                           .lines = {trip, 2 * trip / size, mbit, sites}};
              digest.add_sends(c);
              if (kind == OpKind::all_reduce) digest.add_sends(c, Quantisation::int8_minmax);
            }
          }
        }
      }
    }
  }
  for (const std::uint32_t size : {2U, 3U, 4U, 16U, 17U}) {
    for (const std::uint64_t mib : {4, 6, 8, 32, 64}) {
      for (const OpKind kind : {OpKind::all_reduce, OpKind::all_gather, OpKind::reduce_scatter}) {
        const bool parts = kind != OpKind::all_reduce;
        digest.add_sends({.kind = kind,
                          .size = size,
                          .counts = {(mib << 17) / (parts ? size : 1)},
                          .lines = {.local = true}});
      }
    }
  }
  EXPECT_EQ(std::pair(kProtocolVersion, digest.value()),
            std::pair(13U, std::uint64_t{10154396028737811078ULL}))
      << "ranks of two builds would choose differently: raise kProtocolVersion (base/protocol.h)";
}

TEST(Selection, NamesTheAlgorithmThatItChose) {
  const auto chosen = [](OpKind kind, std::uint32_t size, std::uint64_t count, Lines lines = {}) {
    const Case c{.kind = kind, .size = size, .counts = {count}, .lines = std::move(lines)};
    const auto algorithm = build_schedule(args_of(c, 0)).algorithm;
    for (std::uint32_t rank = 1; rank < size; ++rank) {
      EXPECT_EQ(build_schedule(args_of(c, rank)).algorithm, algorithm) << rank;
    }
    return algorithm_name(algorithm);
  };
  const Lines far{80'000, 80'000};
  const Lines local{.local = true};
  EXPECT_EQ(chosen(OpKind::all_reduce, 1, 1 << 20), "none");
  EXPECT_EQ(chosen(OpKind::all_reduce, 4, 0), "none");
  EXPECT_EQ(chosen(OpKind::all_reduce, 4, 1), "doubling");
  EXPECT_EQ(chosen(OpKind::all_reduce, 4, 1, far), "exchange");
  EXPECT_EQ(chosen(OpKind::all_reduce, 2, 1 << 16), "exchange");
  EXPECT_EQ(chosen(OpKind::all_reduce, 4, 1 << 14), "direct");
  EXPECT_EQ(chosen(OpKind::all_reduce, 4, 1 << 20), "ring");
  EXPECT_EQ(chosen(OpKind::all_reduce, 4, 1 << 20, local), "areas");
  EXPECT_EQ(chosen(OpKind::all_reduce, 4, 1 << 20, {.sites = {0, 0, 1, 1}}), "two_levels");
  EXPECT_EQ(chosen(OpKind::broadcast, 4, 1), "tree");
  EXPECT_EQ(chosen(OpKind::broadcast, 4, 1 << 20), "chain");
  EXPECT_EQ(chosen(OpKind::broadcast, 4, 1, far), "direct");
  EXPECT_EQ(chosen(OpKind::all_gather, 4, 1 << 20), "ring");
  EXPECT_EQ(chosen(OpKind::reduce_scatter, 4, 1 << 20, {.sites = {0, 0, 1, 1}}), "two_levels");
  EXPECT_EQ(chosen(OpKind::all_to_all, 4, 1), "pairwise");
  EXPECT_EQ(chosen(OpKind::barrier, 4, 0), "dissemination");
}

TEST(Selection, EveryAlgorithmHasANameOfItsOwnAndIsCounted) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kAlgorithms; ++i) {
    names.insert(algorithm_name(static_cast<pccl::Algorithm>(i)));
  }
  EXPECT_EQ(names.size(), kAlgorithms);
  EXPECT_FALSE(names.contains("unknown"));
  EXPECT_EQ(algorithm_name(static_cast<pccl::Algorithm>(kAlgorithms)), "unknown");
}

TEST(Selection, EveryKindIsRightOverLongLines) {
  for (const OpKind kind : kOpKinds) {
    for (const std::uint32_t size : {1U, 2U, 3U, 4U, 5U, 8U, 9U}) {
      for (const std::uint64_t count :
           {std::uint64_t{0}, std::uint64_t{5}, kRingElements, kChainElements}) {
        run_and_check({.kind = kind,
                       .size = size,
                       .root = size / 2,
                       .in_place = count % 2 == 0,
                       .counts = {count},
                       .segment_bytes = 16'384,
                       .lines = {80'000, 80'000}},
                      build_schedule);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Selection, OverLongLinesFewStepsAreTakenForMoreBytes) {
  const Lines kNear{1'999, 1'999};
  const Lines kFar{80'000, 80'000};
  EXPECT_EQ(turns(OpKind::all_reduce, 4, 1, kNear), 3U);
  EXPECT_EQ(turns(OpKind::all_reduce, 4, 1, kFar), 1U);
  EXPECT_EQ(turns(OpKind::all_reduce, 4, 1U << 18, kNear), 6U);
  EXPECT_EQ(turns(OpKind::all_reduce, 4, 1U << 17, kFar), 2U);
  EXPECT_EQ(turns(OpKind::all_reduce, 4, 1U << 23, kFar), 6U)
      << "the bytes take longer than the steps";
  for (const OpKind kind : {OpKind::broadcast, OpKind::reduce, OpKind::barrier}) {
    EXPECT_EQ(turns(kind, 4, 5, kFar), kind == OpKind::broadcast ? 0U : 1U) << "rank 0 is the root";
    EXPECT_EQ(turns(kind, 4, 5, kNear), kind == OpKind::broadcast ? 0U : 2U);
  }
  for (const OpKind kind : {OpKind::all_gather, OpKind::reduce_scatter}) {
    EXPECT_EQ(turns(kind, 4, 1U << 16, kNear), 3U);
    EXPECT_EQ(turns(kind, 4, 1U << 16, kFar), 1U);
    EXPECT_EQ(turns(kind, 4, 1U << 22, kFar), 3U);
  }
}

TEST(Selection, OfNothingNothingIsSentWhereAllRanksKnowThatItIsNothing) {
  for (const OpKind kind : {OpKind::all_reduce, OpKind::reduce, OpKind::broadcast,
                            OpKind::all_gather, OpKind::reduce_scatter}) {
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      const CollectiveArgs args = args_of({.kind = kind, .size = 4, .counts = {0}}, rank);
      EXPECT_TRUE(build_schedule(args).steps.empty()) << kind_name(kind);
    }
  }
}

TEST(Selection, ArgumentsThatDoNotFitTheKindBreakAnInvariant) {
  CollectiveArgs args = args_of({.kind = OpKind::reduce_scatter, .size = 4, .counts = {10}}, 0);
  args.input_bytes.pop_back();
  EXPECT_THROW((void)build_schedule(args), BrokenInvariant);
  args = args_of({.kind = OpKind::all_reduce, .size = 4, .counts = {10}}, 0);
  args.rank = 4;
  EXPECT_THROW((void)build_schedule(args), BrokenInvariant);
  args = args_of({.kind = OpKind::all_reduce, .size = 4, .counts = {10}}, 0);
  args.input_bytes = {81};
  EXPECT_THROW((void)build_schedule(args), BrokenInvariant);
  args.kind = OpKind::send;
  EXPECT_THROW((void)build_schedule(args), BrokenInvariant);
}

}  // namespace
}  // namespace pccl::test
