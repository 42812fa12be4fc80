// The plan of a transfer: whom it asks, and for what, in every order of arrivals and failures.
#include "state/plan.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace pccl::test {
namespace {

constexpr PeerId kA{1};
constexpr PeerId kB{2};
constexpr PeerId kC{3};

WantedItem item(std::uint32_t index) {
  return {index, Digest{static_cast<std::uint8_t>(index)}, index * 10};
}

/// "2 from 1": item and source of the pull that is due.
std::string due(const TransferPlan& plan) {
  const auto pull = plan.next();
  if (!pull) return plan.complete() ? "complete" : "no source";
  return std::to_string(pull->item.index) + " from " + std::to_string(pull->source.value);
}

TEST(TransferPlan, items_come_in_order_from_the_first_source) {
  TransferPlan plan;
  plan.want({item(1), item(2)}, {kA, kB});
  EXPECT_EQ(due(plan), "1 from 1");
  EXPECT_EQ(due(plan), "1 from 1") << "until it has come";
  plan.arrived(item(1).digest);
  EXPECT_EQ(due(plan), "2 from 1");
  EXPECT_FALSE(plan.complete());
  plan.arrived(item(2).digest);
  EXPECT_EQ(due(plan), "complete");
}

TEST(TransferPlan, nothing_that_is_there_is_asked_for) {
  TransferPlan plan;
  plan.want({item(1), item(2), item(3)}, {kA});
  plan.arrived(item(3).digest);
  plan.arrived(item(1).digest);
  EXPECT_EQ(due(plan), "2 from 1");
  plan.arrived(item(2).digest);
  EXPECT_EQ(due(plan), "complete");
  plan.want({}, {});
  EXPECT_EQ(due(plan), "complete");
}

TEST(TransferPlan, items_with_the_same_bytes_come_once) {
  TransferPlan plan;
  plan.want({{1, Digest{7}, 5}, {2, Digest{7}, 5}}, {kA});
  plan.arrived(Digest{7});
  EXPECT_EQ(due(plan), "complete");
}

TEST(TransferPlan, a_source_that_has_failed_is_asked_last) {
  TransferPlan plan;
  plan.want({item(1), item(2)}, {kA, kB, kC});
  plan.failed(kA);
  EXPECT_EQ(due(plan), "1 from 2");
  plan.arrived(item(1).digest);
  EXPECT_EQ(due(plan), "2 from 2");
  plan.failed(kB);
  EXPECT_EQ(due(plan), "2 from 3");
  plan.failed(kC);
  EXPECT_EQ(due(plan), "2 from 1") << "it has not been asked for this item";
  plan.failed(kA);
  EXPECT_EQ(due(plan), "no source");
}

TEST(TransferPlan, the_next_attempt_knows_who_has_failed) {
  TransferPlan plan;
  plan.want({item(1), item(2)}, {kA, kB});
  plan.arrived(item(1).digest);
  plan.failed(kA);
  plan.failed(kB);
  plan.failed(kA);
  EXPECT_EQ(due(plan), "no source");
  plan.want({item(1), item(2)}, {kA, kB});
  EXPECT_EQ(due(plan), "1 from 2") << "it has failed less often";
  plan.want({item(2)}, {kA, kC});
  EXPECT_EQ(due(plan), "2 from 3");
}

/// Any order of events: each pull is for the first missing item, of a source that has not failed
/// it, none is asked while one with fewer failures is left, and the end is the right one.
TEST(TransferPlan, holds_in_any_order_of_events) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    TransferPlan plan;
    std::map<PeerId, std::uint32_t> failures;
    for (std::uint64_t attempt = 0; attempt < 3; ++attempt) {
      std::set<Digest> there;
      std::vector<WantedItem> items;
      for (std::uint64_t i = random.below(6); i > 0; --i) {
        items.push_back(item(static_cast<std::uint32_t>(random.below(8))));
      }
      std::vector<PeerId> sources;
      for (std::uint64_t i = 1; i <= 4; ++i) {
        if (random.below(3) > 0) sources.push_back(PeerId{i});
      }
      plan.want(items, sources);
      if (!items.empty() && random.below(2) == 0) {
        there.insert(items.back().digest);
        plan.arrived(items.back().digest);
      }
      std::set<std::pair<Digest, PeerId>> failed;
      const auto missing = [&]() -> const WantedItem* {
        for (const WantedItem& one : items) {
          if (!there.contains(one.digest)) return &one;
        }
        return nullptr;
      };
      std::size_t pulls = 0;
      while (const auto pull = plan.next()) {
        ASSERT_LE(++pulls, items.size() * sources.size()) << "seed " << seed;
        const WantedItem* first = missing();
        ASSERT_NE(first, nullptr) << "seed " << seed;
        ASSERT_EQ(pull->item.digest, first->digest) << "seed " << seed;
        ASSERT_FALSE(failed.contains({first->digest, pull->source})) << "seed " << seed;
        for (const PeerId other : sources) {
          ASSERT_TRUE(failures[other] >= failures[pull->source] ||
                      failed.contains({first->digest, other}))
              << "seed " << seed << ": " << other.value << " has failed less often";
        }
        if (random.below(2) == 0) {
          plan.failed(pull->source);
          ++failures[pull->source];
          failed.insert({first->digest, pull->source});
        } else {
          const Digest digest = first->digest;
          plan.arrived(digest);
          there.insert(digest);
        }
      }
      const WantedItem* first = missing();
      ASSERT_EQ(plan.complete(), first == nullptr) << "seed " << seed;
      for (const PeerId source : sources) {
        if (first != nullptr) {
          ASSERT_TRUE(failed.contains({first->digest, source})) << "seed " << seed;
        }
      }
    }
  }
}

}  // namespace
}  // namespace pccl::test
