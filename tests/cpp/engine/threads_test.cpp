// Engines of several threads: what they add up, quantise and send has the same bits as with one,
// and a loss while threads move bytes leaves inputs and results whole.
#include <memory>
#include <vector>

#include "elastic_run.h"

namespace pccl::testing {
namespace {

using Values = std::vector<float>;
constexpr std::size_t kCount = (3U << 20) / 4 + 5;

EngineOptions several(std::uint32_t threads, Plaintext plaintext) {
  EngineOptions options;
  options.threads = threads;
  options.links.plaintext = plaintext;
  options.links.bulk_lanes = 3;
  return options;
}

float value_of(std::size_t rank, std::size_t call, std::size_t i) {
  return static_cast<float>((rank + 1) * ((i * 7 + call) % 1001)) / 8;
}

/// What each of three ranks adds to each of eight calls.
std::vector<std::vector<Values>> all_terms() {
  std::vector<std::vector<Values>> all(3, std::vector<Values>(8));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (std::size_t call = 0; call < 8; ++call) {
      all[rank][call] =
          repeating(kCount, 1001, [&](std::size_t i) { return value_of(rank, call, i); });
    }
  }
  return all;
}

/// What each rank has after calls of several kinds, all in flight at once.
std::vector<std::vector<Values>> results(FixedWorld& world, std::vector<std::vector<Values>> all) {
  constexpr Quantisation kWays[] = {Quantisation::none, Quantisation::int8_minmax,
                                    Quantisation::int4_minmax, Quantisation::bf16};
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (std::size_t call = 0; call < 8; ++call) {
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      OpRequest request =
          all_reduce(all[rank][call], call % 3 == 0 ? ReduceOp::avg : ReduceOp::sum);
      request.descriptor.quantisation = kWays[call % 4];
      tickets.push_back(world.engines[rank]->post(world.group, std::move(request)));
    }
  }
  for (const auto& ticket : tickets) expect_success(ticket);
  return all;
}

TEST(Threads, change_no_bit_of_any_result) {
  FixedWorld one(3, GroupId{77}, several(1, Plaintext::all));
  const auto terms = all_terms();
  const auto expected = results(one, terms);
  for (const Plaintext plaintext : {Plaintext::all, Plaintext::none}) {
    FixedWorld world(3, GroupId{78}, several(4, plaintext));
    const auto got = results(world, terms);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      for (std::size_t call = 0; call < 8; ++call) {
        ASSERT_TRUE(same_bits(got[rank][call], expected[rank][call])) << rank << " " << call;
      }
    }
  }
}

TEST(Threads, a_member_that_vanishes_while_they_move_bytes_is_left_out_and_all_is_added_once) {
  for (int again = 0; again < 3; ++again) {
    Founded run(3, several(3, Plaintext::none));
    std::vector<std::vector<Values>> values(3);
    std::vector<std::shared_ptr<Ticket>> tickets;
    for (std::size_t call = 0; call < 4; ++call) {
      for (std::size_t i = 0; i < 3; ++i) {
        values[i].push_back(Values(kCount, static_cast<float>(1 << i)));
      }
    }
    for (std::size_t call = 0; call < 4; ++call) {
      for (std::size_t i = 0; i < 3; ++i) {
        const auto ticket = run.peers[i].engine->post(run.group, all_reduce(values[i][call]));
        if (i < 2) tickets.push_back(ticket);
      }
    }
    ASSERT_TRUE(wait_until(
        [&] { return run.peers[0].engine->counters().value().bytes_received > 1 << 20; }));
    run.peers[2].engine->vanish();
    for (const auto& ticket : tickets) expect_success(ticket);
    for (std::size_t call = 0; call < 4; ++call) {
      const float first = values[0][call][0];
      EXPECT_TRUE(first == 3 || first == 7) << first;
      for (std::size_t i = 0; i < 2; ++i)
        EXPECT_TRUE(same_bits(values[i][call], Values(kCount, first)));
    }
  }
}

}  // namespace
}  // namespace pccl::testing
