// Which receive takes which send: a table of stories, and seeded random orders against a model that
// knows only the rules of point_to_point.
#include "engine/matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace pccl {
namespace {

using Pairs = std::vector<Matcher::Pair>;
using News = Matcher::News;

const auto kEverybody =
    std::make_shared<const std::vector<PeerId>>(std::vector{PeerId{1}, PeerId{2}, PeerId{3}});

SendName send(std::uint64_t peer, std::uint64_t index, std::uint64_t tag = 0) {
  return {PeerId{peer}, tag, index};
}
Matcher::Receive from(std::uint64_t peer, Matcher::ReceiveId id, std::uint64_t tag = 0) {
  return {id, tag, PeerId{peer}, kEverybody};
}
Matcher::Receive from_any(Matcher::ReceiveId id, std::uint64_t tag = 0) {
  return {id, tag, {}, kEverybody};
}
Pairs comes(Matcher& m, const SendName& name) {
  EXPECT_EQ(m.arrive(name), News::fresh);
  m.ready(name);
  return m.settle(name.peer);
}
void pairs_now(const std::optional<Matcher::Pair>& pair, Matcher::ReceiveId id,
               const SendName& name) {
  ASSERT_TRUE(pair);
  EXPECT_EQ(*pair, (Matcher::Pair{id, name}));
}

TEST(Matcher, sends_of_one_tag_are_taken_in_their_order_whichever_side_is_first) {
  Matcher m;
  EXPECT_TRUE(comes(m, send(1, 0)).empty());
  EXPECT_TRUE(comes(m, send(1, 1, 9)).empty());
  EXPECT_TRUE(comes(m, send(1, 2)).empty());
  pairs_now(m.post(from(1, 10)), 10, send(1, 0));
  pairs_now(m.post(from(1, 11, 9)), 11, send(1, 1, 9));
  EXPECT_FALSE(m.post(from(2, 12)));
  pairs_now(m.post(from(1, 13)), 13, send(1, 2));
  EXPECT_EQ(comes(m, send(2, 0)), (Pairs{{12, send(2, 0)}}));
}

TEST(Matcher, a_receive_from_any_takes_what_came_first_of_those_it_knows) {
  Matcher m;
  EXPECT_TRUE(comes(m, send(3, 0)).empty());
  EXPECT_TRUE(comes(m, send(1, 0)).empty());
  EXPECT_TRUE(comes(m, send(7, 0)).empty()) << "not of this numbering";
  pairs_now(m.post(from_any(1)), 1, send(3, 0));
  pairs_now(m.post(from_any(2)), 2, send(1, 0));
  EXPECT_FALSE(m.post(from_any(3)));
  EXPECT_FALSE(m.post(from(2, 4)));
  EXPECT_EQ(comes(m, send(2, 0)), (Pairs{{3, send(2, 0)}}));
  EXPECT_EQ(comes(m, send(2, 1)), (Pairs{{4, send(2, 1)}}));
}

TEST(Matcher, a_send_waits_for_those_before_it) {
  Matcher m;
  EXPECT_FALSE(m.post(from(1, 1)));
  EXPECT_FALSE(m.post(from(1, 2)));
  EXPECT_TRUE(comes(m, send(1, 1)).empty())
      << "its forerunner, which may have this tag, is missing";
  EXPECT_EQ(m.arrive(send(1, 0)), News::fresh);
  EXPECT_TRUE(m.settle(PeerId{1}).empty()) << "half here";
  m.ready(send(1, 0));
  EXPECT_EQ(m.settle(PeerId{1}), (Pairs{{1, send(1, 0)}, {2, send(1, 1)}}));
}

TEST(Matcher, one_of_another_tag_that_is_half_here_holds_up_nobody) {
  Matcher m;
  EXPECT_EQ(m.arrive(send(1, 0, 5)), News::fresh);
  EXPECT_TRUE(comes(m, send(1, 1)).empty());
  pairs_now(m.post(from(1, 1)), 1, send(1, 1));
}

TEST(Matcher, what_is_withdrawn_is_taken_by_nobody_and_holds_up_nobody) {
  Matcher m;
  EXPECT_TRUE(comes(m, send(1, 0)).empty());
  EXPECT_TRUE(m.withdraw(send(1, 0)));
  EXPECT_FALSE(m.post(from(1, 1)));
  EXPECT_TRUE(comes(m, send(1, 2)).empty());
  EXPECT_TRUE(m.withdraw(send(1, 1))) << "it never came";
  EXPECT_EQ(m.settle(PeerId{1}), (Pairs{{1, send(1, 2)}}));
  EXPECT_EQ(m.arrive(send(1, 1)), News::withdrawn) << "the rest of it was on its way";
  EXPECT_EQ(m.arrive(send(1, 1)), News::again);
  EXPECT_FALSE(m.withdraw(send(1, 2))) << "taken";
}

TEST(Matcher, a_name_comes_once) {
  Matcher m;
  EXPECT_TRUE(comes(m, send(1, 0)).empty());
  EXPECT_EQ(m.arrive(send(1, 0)), News::again);
  EXPECT_EQ(m.arrive(send(1, 0, 4)), News::again) << "the number is the name, whatever the tag";
  pairs_now(m.post(from(1, 1)), 1, send(1, 0));
  EXPECT_EQ(m.arrive(send(1, 0)), News::again);
  EXPECT_EQ(m.arrive(send(1, 1U << 20)), News::fresh);
  EXPECT_EQ(m.arrive(send(1, 1U << 20)), News::again);
}

TEST(Matcher, a_receive_that_is_cancelled_takes_nothing) {
  Matcher m;
  EXPECT_FALSE(m.post(from_any(1)));
  EXPECT_FALSE(m.post(from(2, 2)));
  m.cancel(1);
  m.cancel(7);
  EXPECT_EQ(comes(m, send(2, 0)), (Pairs{{2, send(2, 0)}}));
}

TEST(Matcher, what_it_has_forgotten_of_withdrawn_sends_is_dropped_and_breaks_no_rule) {
  Matcher m;
  EXPECT_TRUE(comes(m, send(1, 0)).empty());
  for (std::uint64_t i = 1; i <= Matcher::kWithdrawnMax; ++i) EXPECT_TRUE(m.withdraw(send(1, i)));
  EXPECT_FALSE(m.forget_withdrawn(PeerId{1}));
  EXPECT_TRUE(m.withdraw(send(1, Matcher::kWithdrawnMax + 1)));
  EXPECT_EQ(m.forget_withdrawn(PeerId{1}), 1U);
  EXPECT_FALSE(m.forget_withdrawn(PeerId{1}));
  EXPECT_EQ(m.arrive(send(1, 1)), News::withdrawn);
  EXPECT_EQ(m.arrive(send(1, 2)), News::withdrawn);
  EXPECT_EQ(m.arrive(send(1, 2)), News::again);
  pairs_now(m.post(from(1, 1)), 1, send(1, 0));
  Matcher gap;  // those that are numbered behind what has not come are known by nothing else
  for (std::uint64_t i = 1; i < 3000; ++i) EXPECT_TRUE(gap.withdraw(send(1, i)));
  EXPECT_FALSE(gap.forget_withdrawn(PeerId{1}));
}

TEST(Matcher, a_withdrawn_send_that_is_half_here_lets_the_next_one_pass) {
  Matcher m;
  EXPECT_FALSE(m.post(from_any(1)));
  EXPECT_EQ(m.arrive(send(1, 0)), News::fresh);
  EXPECT_TRUE(comes(m, send(1, 1)).empty());
  EXPECT_TRUE(m.withdraw(send(1, 0)));
  EXPECT_EQ(m.settle(PeerId{1}), (Pairs{{1, send(1, 1)}}));
}

TEST(Matcher, receives_from_one_and_from_any_take_turns_as_they_were_posted) {
  Matcher m;
  EXPECT_FALSE(m.post(from_any(1)));
  EXPECT_FALSE(m.post(from(1, 2)));
  EXPECT_FALSE(m.post(from(2, 3)));
  EXPECT_FALSE(m.post(from_any(4)));
  EXPECT_FALSE(m.post(from(1, 5, 9)));
  EXPECT_EQ(m.arrive(send(1, 1, 9)), News::fresh);
  m.ready(send(1, 1, 9));
  for (const std::uint64_t i : {2, 3, 4}) EXPECT_TRUE(comes(m, send(1, i)).empty());
  EXPECT_EQ(comes(m, send(1, 0)),
            (Pairs{{1, send(1, 0)}, {2, send(1, 2)}, {4, send(1, 3)}, {5, send(1, 1, 9)}}));
  pairs_now(m.post(from_any(6)), 6, send(1, 4));
}

/// The work of a hundred thousand, where each one looks at all others, would take a minute.
TEST(Matcher, thousands_that_wait_cost_the_others_nothing) {
  constexpr std::uint64_t kMany = 100'000;
  const auto begin = std::chrono::steady_clock::now();
  Matcher m;
  EXPECT_FALSE(m.post(from(1, 1, 7)));
  for (std::uint64_t i = 0; i < kMany; ++i) EXPECT_TRUE(comes(m, send(1, i)).empty());
  EXPECT_EQ(comes(m, send(1, kMany, 7)), (Pairs{{1, send(1, kMany, 7)}}));
  for (std::uint64_t i = 0; i < kMany; ++i) EXPECT_FALSE(m.post(from(2, 2 + i, 1)));
  for (std::uint64_t i = 0; i < kMany; ++i) EXPECT_TRUE(comes(m, send(2, i)).empty());
  for (std::uint64_t i = kMany; i > 0; --i) m.cancel(1 + i);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

// ------------------------------------------------------------------------------------ random
// orders

/// News of each sender comes in any order; receives are posted and cancelled in between.
class Walk {
 public:
  explicit Walk(std::uint32_t seed) : random_(seed) {
    for (std::uint64_t peer = 1; peer <= 3; ++peer) {
      const std::uint64_t count = below(12);
      std::vector<SendName> names;
      for (std::uint64_t i = 0; i < count; ++i) names.push_back(send(peer, i, below(3)));
      sent_[peer] = names;
      std::shuffle(names.begin(), names.end(), random_);
      for (const SendName& name : names) news_.push_back(name);
    }
    std::shuffle(news_.begin(), news_.end(), random_);
  }

  void run() {
    for (int i = 0; i < 60; ++i) {
      if (below(2) == 0) {
        post();
      } else if (!half_.empty() && below(2) == 0) {
        whole();
      } else if (!news_.empty()) {
        begin();
      } else if (below(4) == 0 && !waiting_.empty()) {
        const auto id = waiting_.begin()->first;
        m_.cancel(id);
        waiting_.erase(id);
      }
      check();
    }
    while (!news_.empty()) begin();
    while (!half_.empty()) whole();
    check();
    for (std::uint64_t tag = 0; tag < 3; ++tag) {
      for (int i = 0; i < 40; ++i) post_one(from_any(++last_, tag));
    }
    std::size_t total = 0;
    for (const auto& [peer, names] : sent_) total += names.size();
    EXPECT_EQ(taken_.size() + withdrawn_, total) << "with receives for all, all are taken";
  }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  void begin() {
    const SendName name = news_.back();
    news_.pop_back();
    if (below(8) == 0) {
      EXPECT_TRUE(m_.withdraw(name));
      gone_.insert(name);
      ++withdrawn_;
    } else {
      EXPECT_EQ(m_.arrive(name), News::fresh);
      half_.push_back(name);
    }
    take(m_.settle(name.peer));
  }
  void whole() {
    std::swap(half_[below(half_.size())], half_.back());
    const SendName name = half_.back();
    half_.pop_back();
    ready_.insert(name);
    m_.ready(name);
    take(m_.settle(name.peer));
  }
  void post() {
    const std::uint64_t tag = below(3);
    post_one(below(3) == 0 ? from_any(++last_, tag) : from(1 + below(3), ++last_, tag));
  }
  void post_one(const Matcher::Receive& receive) {
    waiting_[receive.id] = receive;
    if (const auto pair = m_.post(receive)) take({*pair});
  }
  void take(const Pairs& pairs) {
    for (const auto& [id, name] : pairs) {
      ASSERT_TRUE(waiting_.contains(id));
      const Matcher::Receive receive = waiting_.at(id);
      waiting_.erase(id);
      EXPECT_EQ(name.tag, receive.tag);
      EXPECT_EQ(name.peer, receive.from.value_or(name.peer));
      EXPECT_TRUE(ready_.contains(name));
      EXPECT_TRUE(taken_.insert(name).second) << "taken twice";
      for (const SendName& earlier : sent_[name.peer.value]) {
        if (earlier.index >= name.index || earlier.tag != name.tag) continue;
        EXPECT_TRUE(taken_.contains(earlier) || gone_.contains(earlier)) << "overtaken";
      }
    }
  }
  /// Nothing waits that could be paired.
  void check() {
    for (const auto& [id, receive] : waiting_) {
      for (const auto& [peer, names] : sent_) {
        if (receive.from && receive.from->value != peer) continue;
        for (const SendName& name : names) {
          const bool known = ready_.contains(name) || gone_.contains(name) ||
                             std::find(half_.begin(), half_.end(), name) != half_.end();
          if (!known) break;  // what follows may not be taken yet
          if (name.tag != receive.tag || taken_.contains(name) || gone_.contains(name)) continue;
          EXPECT_FALSE(ready_.contains(name)) << "left waiting";
          break;
        }
      }
    }
  }

  std::mt19937 random_;
  Matcher m_;
  std::map<std::uint64_t, std::vector<SendName>> sent_;
  std::vector<SendName> news_;
  std::vector<SendName> half_;
  std::set<SendName> ready_, taken_, gone_;
  std::map<Matcher::ReceiveId, Matcher::Receive> waiting_;
  Matcher::ReceiveId last_ = 0;
  std::size_t withdrawn_ = 0;
};

TEST(Matcher, in_any_order_of_news_each_send_is_taken_once_and_in_turn) {
  for (std::uint32_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Walk(seed).run();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace pccl
