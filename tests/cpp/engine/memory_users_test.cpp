#include "engine/memory_users.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace pccl {
namespace {

OpRequest request(const std::vector<Buffer>& inputs, const std::vector<Buffer>& outputs) {
  OpRequest made;
  made.inputs = inputs;
  made.outputs = outputs;
  return made;
}

Buffer at(std::uint64_t begin, std::uint64_t bytes) {
  return {reinterpret_cast<std::byte*>(begin), bytes};
}

/// The same answer, by a look at all operations.
std::optional<OpKey> searched(const std::map<OpKey, OpRequest>& users, OpKey key,
                              const OpRequest& own) {
  std::optional<OpKey> last;
  for (const auto& [op, other] : users) {
    if (op < key && (touch(own.outputs, other.outputs) || touch(own.outputs, other.inputs) ||
                     touch(own.inputs, other.outputs))) {
      last = op;
    }
  }
  return last;
}

TEST(MemoryUsers, readers_run_beside_each_other_and_a_writer_beside_nobody) {
  MemoryUsers users;
  users.add({0, 1}, request({at(100, 10)}, {}));
  users.add({0, 2}, request({}, {at(200, 10)}));
  EXPECT_EQ(users.last_before({0, 3}, request({at(100, 10)}, {})), std::nullopt);
  EXPECT_EQ(users.last_before({0, 3}, request({}, {at(109, 1)})), (OpKey{0, 1}));
  EXPECT_EQ(users.last_before({0, 3}, request({}, {at(110, 90), at(90, 10)})), std::nullopt);
  EXPECT_EQ(users.last_before({0, 3}, request({at(0, 1000)}, {})), (OpKey{0, 2}));
  EXPECT_EQ(users.last_before({0, 2}, request({}, {at(0, 1000)})), (OpKey{0, 1}));
  users.remove({0, 1}, request({at(100, 10)}, {}));
  EXPECT_EQ(users.last_before({0, 3}, request({}, {at(100, 10)})), std::nullopt);
}

TEST(MemoryUsers, no_bytes_are_nobodys_and_the_ends_of_the_address_space_are_places_too) {
  MemoryUsers users;
  users.add({0, 1}, request({}, {at(0, 4), at(500, 0), at(~0ULL - 8, 8)}));
  EXPECT_EQ(users.last_before({0, 2}, request({}, {at(2, 0), at(500, 1)})), std::nullopt);
  EXPECT_EQ(users.last_before({0, 2}, request({at(3, 1)}, {})), (OpKey{0, 1}));
  EXPECT_EQ(users.last_before({0, 2}, request({at(~0ULL - 1, 1)}, {})), (OpKey{0, 1}));
  EXPECT_EQ(users.last_before({0, 2}, request({at(1, ~0ULL - 1)}, {})), (OpKey{0, 1}));
  EXPECT_EQ(users.last_before({0, 2}, request({at(4, ~0ULL - 12)}, {})), std::nullopt);
}

TEST(MemoryUsers, answers_as_a_search_through_all_of_them) {
  Random random(16);
  for (int round = 0; round < 50; ++round) {
    MemoryUsers users;
    std::map<OpKey, OpRequest> all;
    const std::uint64_t room = 20 + random.below(2000);
    const auto buffers = [&] {
      std::vector<Buffer> made(random.below(3));
      for (Buffer& b : made)
        b = at(1000 + random.below(room), random.below(1ULL << random.below(9)));
      return made;
    };
    for (std::uint64_t index = 0; index < 200; ++index) {
      const OpKey key{0, index};
      const OpRequest own = request(buffers(), buffers());
      ASSERT_EQ(users.last_before(key, own), searched(all, key, own)) << "round " << round;
      users.add(key, own);
      all.emplace(key, own);
      while (all.size() > 20 || (!all.empty() && random.below(3) == 0)) {
        const auto gone = std::next(all.begin(), static_cast<long>(random.below(all.size())));
        users.remove(gone->first, gone->second);
        all.erase(gone);
      }
      if (all.empty()) continue;
      const auto again = std::next(all.begin(), static_cast<long>(random.below(all.size())));
      ASSERT_EQ(users.last_before(again->first, again->second),
                searched(all, again->first, again->second));
    }
  }
}

}  // namespace
}  // namespace pccl
