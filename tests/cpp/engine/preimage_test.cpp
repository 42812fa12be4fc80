// The undo log against a plain copy, over random overlapping writes.
#include "engine/preimage.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/random.h"
#include "engine/buffer_pool.h"

namespace pccl {
namespace {

TEST(Preimage, restores_every_byte_whatever_was_written_and_in_which_order) {
  BufferPool pool(1U << 20);
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    std::vector<std::byte> memory(1 + random.below(5000));
    for (auto& b : memory) b = static_cast<std::byte>(random.next());
    const std::vector<std::byte> before = memory;
    std::vector<Buffer> outputs{{memory.data(), memory.size()}};
    Preimage preimage(pool, outputs);
    for (int round = 0; round < 2; ++round) {  // once more after a restore, as in a replay
      for (int i = 0; i < 30; ++i) {
        const std::uint64_t begin = random.below(memory.size());
        const std::uint64_t bytes = random.below(memory.size() - begin + 1);
        preimage.save(0, begin, bytes);
        if (bytes > 0)
          std::memset(memory.data() + begin, static_cast<int>(random.below(256)), bytes);
      }
      preimage.restore();
      ASSERT_EQ(memory, before) << seed;
    }
  }
}

TEST(BufferPool, gives_the_same_memory_again_and_keeps_no_more_than_it_may) {
  BufferPool pool(8192);
  const std::byte* first = nullptr;
  {
    const PoolBuffer a = pool.take(5000);
    first = a.data();
    EXPECT_EQ(a.capacity(), 8192U);
    EXPECT_EQ(pool.used_bytes(), 8192U);
  }
  EXPECT_EQ(pool.used_bytes(), 0U);
  const PoolBuffer b = pool.take(8000);
  EXPECT_EQ(b.data(), first);
  const PoolBuffer c = pool.take(8000);
  EXPECT_NE(c.data(), first);
}

}  // namespace
}  // namespace pccl
