// A state is whole or unchanged: what is kept of a fetch, what is believed, and the exchange of all
// items at once.
#include "state/fetch.h"

#include <gtest/gtest.h>

#include <string>

#include "base/log.h"
#include "base/random.h"
#include "hash_item.h"

namespace pccl::test {
namespace {

constexpr PeerId kFirst{1};
constexpr PeerId kSecond{2};

using Bytes = std::vector<std::byte>;

Bytes filled(std::size_t bytes, std::uint64_t seed) {
  Random random(seed);
  Bytes result(bytes);
  for (std::byte& b : result) b = static_cast<std::byte>(random.next());
  return result;
}

struct Interrupted {};

/// Thousands of failures are logged by nobody.
struct Quiet {
  Quiet() { set_log_level(LogLevel::off); }
  ~Quiet() { set_log_level(before); }
  LogLevel before = log_level();
};

/// Items of a state, and the peers that have it: each call of `answer` says what the source does.
struct Fetching {
  std::vector<Bytes> items{filled(40, 0), filled(9000, 1), filled(70000, 2), filled(1, 3), {}};
  std::vector<std::string> asked;  // "item from source"
  std::function<Error(const TransferPlan::Pull&, std::span<std::byte>)> answer;
  StateFetch fetch;

  [[nodiscard]] std::vector<WantedItem> wanted() const {
    std::vector<WantedItem> result{{0, sha256(items[0]), std::nullopt}};
    for (std::uint32_t i = 1; i < items.size(); ++i) {
      result.push_back({i, hash_item(items[i]), items[i].size()});
    }
    return result;
  }
  Result<bool> run(std::vector<PeerId> sources = {kFirst, kSecond}) {
    return run(wanted(), sources);
  }
  Result<bool> run(std::vector<WantedItem> what, std::vector<PeerId> sources) {
    const auto pull = [&](const TransferPlan::Pull& next, StateFetch::Memory& to) -> Error {
      asked.push_back(std::to_string(next.item.index) + " from " +
                      std::to_string(next.source.value));
      const Bytes& item = items[next.item.index];
      if (next.item.bytes) {
        EXPECT_EQ(to.span().size(), item.size());
        std::copy(item.begin(), item.end(), to.span().begin());
      } else {
        to = StateFetch::Memory(std::span<const std::byte>(item));
      }
      return answer ? answer(next, to.span()) : Error{};
    };
    return fetch.run(std::move(what), std::move(sources), pull, &hash_item);
  }
  [[nodiscard]] Bytes got(std::size_t i) const {
    const auto bytes = fetch.at(wanted()[i].digest);
    return {bytes.begin(), bytes.end()};
  }
};

TEST(StateFetch, all_items_come_and_each_is_asked_for_once) {
  Fetching run;
  const auto done = run.run();
  ASSERT_TRUE(done.ok()) << done.error().text;
  EXPECT_TRUE(done.value());
  for (std::size_t i = 0; i < run.items.size(); ++i) EXPECT_EQ(run.got(i), run.items[i]) << i;
  EXPECT_EQ(run.fetch.bytes_received(), 40U + 9000 + 70000 + 1);
  EXPECT_TRUE(run.run().value());
  EXPECT_EQ(run.asked.size(), run.items.size()) << "nothing comes twice";
}

TEST(StateFetch, another_source_goes_on_where_one_dies_in_the_middle_of_an_item) {
  for (const ErrorCode code :
       {ErrorCode::peer_lost, ErrorCode::closed, ErrorCode::timed_out, ErrorCode::unreachable}) {
    Fetching run;
    run.answer = [&](const TransferPlan::Pull& next, std::span<std::byte> to) -> Error {
      if (next.source != kFirst || next.item.index != 2) return {};
      std::fill(to.begin() + 1000, to.end(), std::byte{0});
      return {code, "it died"};
    };
    EXPECT_TRUE(run.run().value());
    EXPECT_EQ(run.asked, (std::vector<std::string>{"0 from 1", "1 from 1", "2 from 1", "2 from 2",
                                                   "3 from 2", "4 from 2"}));
    EXPECT_EQ(run.got(2), run.items[2]);
  }
}

TEST(StateFetch, a_source_with_other_bytes_is_not_believed) {
  Fetching run;
  run.answer = [](const TransferPlan::Pull& next, std::span<std::byte> to) -> Error {
    if (next.source == kFirst && !to.empty()) to.back() ^= std::byte{1};
    return {};
  };
  EXPECT_TRUE(run.run().value());
  for (std::size_t i = 0; i < run.items.size(); ++i) EXPECT_EQ(run.got(i), run.items[i]) << i;
  Fetching alone;
  alone.answer = run.answer;
  EXPECT_FALSE(alone.run({kFirst}).value());
}

TEST(StateFetch, an_error_that_no_source_can_mend_is_the_callers) {
  Fetching run;
  run.answer = [](const TransferPlan::Pull&, std::span<std::byte>) -> Error {
    return {ErrorCode::broken, "a bug"};
  };
  EXPECT_EQ(run.run().error().code, ErrorCode::broken);
  EXPECT_EQ(run.asked.size(), 1U);
}

TEST(StateFetch, what_came_before_an_interruption_stays) {
  Fetching run;
  run.answer = [](const TransferPlan::Pull& next, std::span<std::byte>) -> Error {
    if (next.item.index == 2) throw Interrupted();
    return {};
  };
  EXPECT_THROW((void)run.run(), Interrupted);
  run.answer = nullptr;
  run.asked.clear();
  EXPECT_TRUE(run.run().value());
  EXPECT_EQ(run.asked.size(), 3U);
}

TEST(StateFetch, without_memory_it_fails_and_what_came_stays) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer ends the process at such an allocation";
#endif
  Fetching run;
  auto wanted = run.wanted();
  wanted[2].bytes = 1ULL << 62;
  const auto failed = run.run(wanted, {kFirst});
  EXPECT_EQ(failed.error().code, ErrorCode::no_memory);
  EXPECT_NE(failed.error().text.find("4611686018427387904 bytes"), std::string::npos);
  EXPECT_TRUE(run.run().value());
  EXPECT_EQ(run.asked.size(), run.items.size());
}

/// Memory of the caller, for all items but the manifest.
struct FetchCaller {
  explicit FetchCaller(const Fetching& run) : wanted(run.wanted()) {
    for (std::size_t i = 1; i < wanted.size(); ++i) {
      before.push_back(filled(run.items[i].size(), 100 + i));
    }
    now = before;
    for (std::size_t i = 1; i < wanted.size(); ++i) {
      targets.push_back({wanted[i].digest, now[i - 1]});
    }
  }
  std::vector<WantedItem> wanted;
  std::vector<Bytes> before;
  std::vector<Bytes> now;
  std::vector<StateFetch::Target> targets;
};

TEST(StateFetch, all_targets_are_replaced_and_taken_back_together) {
  Fetching run;
  ASSERT_TRUE(run.run().value());
  FetchCaller caller(run);
  const std::vector<Bytes> after(run.items.begin() + 1, run.items.end());
  ASSERT_FALSE(run.fetch.replace(caller.targets).failed());
  EXPECT_EQ(caller.now, after);
  run.fetch.take_back();
  EXPECT_EQ(caller.now, caller.before);
  run.fetch.take_back();
  EXPECT_EQ(caller.now, caller.before) << "there was nothing to take back";
  ASSERT_FALSE(run.fetch.replace(caller.targets).failed()) << "what was fetched is still here";
  run.fetch.clear();
  run.fetch.take_back();
  EXPECT_EQ(caller.now, after);
}

TEST(StateFetch, what_the_targets_held_is_never_taken_for_an_item) {
  Fetching run;
  ASSERT_TRUE(run.run().value());
  FetchCaller caller(run);
  ASSERT_FALSE(run.fetch.replace(caller.targets).failed());
  const std::vector<Bytes> after = caller.now;
  EXPECT_TRUE(run.run().value());
  for (std::size_t i = 0; i < run.items.size(); ++i) EXPECT_EQ(run.got(i), run.items[i]) << i;
  run.fetch.take_back();
  EXPECT_EQ(caller.now, after) << "another fetch has begun: the targets may be gone";
}

TEST(StateFetch, targets_may_hold_the_same_and_be_the_same) {
  Fetching run;
  ASSERT_TRUE(run.run().value());
  const Bytes before = filled(9000, 7);
  Bytes one = before;
  Bytes other = filled(9000, 8);
  const Bytes other_before = other;
  const Digest digest = run.wanted()[1].digest;
  ASSERT_FALSE(run.fetch.replace({{digest, one}, {digest, other}, {digest, one}}).failed());
  EXPECT_EQ(one, run.items[1]);
  EXPECT_EQ(other, run.items[1]);
  run.fetch.take_back();
  EXPECT_EQ(one, before);
  EXPECT_EQ(other, other_before);
  EXPECT_EQ(run.got(1), run.items[1]);
}

TEST(StateFetch, nothing_is_replaced_where_one_target_does_not_fit) {
  Fetching run;
  ASSERT_TRUE(run.run().value());
  for (const auto& spoil : std::vector<std::function<void(StateFetch::Target&)>>{
           [](auto& target) { target.digest[0] ^= 1; },
           [](auto& target) { target.memory = target.memory.first(0); }}) {
    FetchCaller caller(run);
    spoil(caller.targets[2]);
    EXPECT_EQ(run.fetch.replace(caller.targets).code, ErrorCode::invalid);
    EXPECT_EQ(caller.now, caller.before);
  }
}

/// Whatever each source does at each item, and however often it is tried again: what is here is
/// right, and in the end everything is.
TEST(StateFetch, holds_whatever_the_sources_do) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Quiet quiet;
    Random random(seed);
    Fetching run;
    run.answer = [&](const TransferPlan::Pull&, std::span<std::byte> to) -> Error {
      switch (random.below(5)) {
        case 0:
          return {ErrorCode::peer_lost, "gone"};
        case 1:
          if (!to.empty()) to[random.below(to.size())] ^= std::byte{4};
          return {};
        case 2:
          throw Interrupted();
        default:
          return {};
      }
    };
    bool done = false;
    for (int attempt = 0; attempt < 200 && !done; ++attempt) {
      try {
        const auto result = run.run();
        ASSERT_TRUE(result.ok());
        done = result.value();
      } catch (const Interrupted&) {
      }
    }
    ASSERT_TRUE(done) << "seed " << seed;
    for (std::size_t i = 0; i < run.items.size(); ++i) ASSERT_EQ(run.got(i), run.items[i]);
  }
}

}  // namespace
}  // namespace pccl::test
