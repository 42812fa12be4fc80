// Memory that two processes share: its rings, what another process may do to them, and what of it
// a forked child has.
#include "transport/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "limited.h"

namespace pccl {
namespace {

constexpr std::size_t kRing = kRingBytesMin;

/// Both ends of one memory.
struct Shared {
  SharedMemory maker = std::move(SharedMemory::make(kRing)).value();
  SharedMemory taker = std::move(SharedMemory::take(maker.descriptor(), kRing)).value();
};

TEST(SharedMemory, what_one_end_writes_the_other_one_reads_in_both_directions) {
  Shared shared;
  for (const bool back : {false, true}) {
    RingWriter writer = back ? shared.taker.writer() : shared.maker.writer();
    RingReader reader = back ? shared.maker.reader() : shared.taker.reader();
    Random random(7);
    std::deque<std::byte> under_way;
    std::vector<std::byte> bytes;
    for (int i = 0; i < 300; ++i) {
      bytes.resize(random.below(*writer.room() + 1));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
      writer.write(bytes);
      under_way.insert(under_way.end(), bytes.begin(), bytes.end());
      EXPECT_EQ(writer.unread(), under_way.size());
      const auto here = reader.here();
      ASSERT_TRUE(here.has_value());
      ASSERT_EQ(here->size(), under_way.size());
      const std::size_t taken = random.below(here->size() + 1);
      ASSERT_TRUE(std::equal(here->begin(), here->begin() + static_cast<std::ptrdiff_t>(taken),
                             under_way.begin()));
      under_way.erase(under_way.begin(), under_way.begin() + static_cast<std::ptrdiff_t>(taken));
      reader.take(taken);
    }
  }
}

TEST(SharedMemory, two_threads_see_every_byte_in_its_order) {
  Shared shared;
  constexpr std::size_t kBytes = 8U << 20;
  std::thread other([&] {
    RingWriter writer = shared.maker.writer();
    std::vector<std::byte> piece(5001);
    for (std::size_t at = 0; at < kBytes;) {
      const std::size_t now = std::min({piece.size(), kBytes - at, *writer.room()});
      for (std::size_t i = 0; i < now; ++i) piece[i] = static_cast<std::byte>((at + i) * 31 >> 3);
      writer.write(std::span(piece).first(now));
      at += now;
      if (now == 0) std::this_thread::yield();
    }
  });
  RingReader reader = shared.taker.reader();
  std::size_t wrong = 0;
  for (std::size_t at = 0; at < kBytes;) {
    const auto here = *reader.here();
    for (std::size_t i = 0; i < here.size(); ++i) {
      wrong += here[i] == static_cast<std::byte>((at + i) * 31 >> 3) ? 0U : 1U;
    }
    reader.take(here.size());
    at += here.size();
    if (here.empty()) std::this_thread::yield();
  }
  other.join();
  EXPECT_EQ(wrong, 0U);
}

TEST(SharedMemory, a_side_that_sleeps_is_woken_once_and_only_if_there_is_something) {
  Shared shared;
  RingWriter writer = shared.maker.writer();
  RingReader reader = shared.taker.reader();
  const std::vector<std::byte> bytes(kRing);
  EXPECT_FALSE(writer.wakes_reader()) << "it is awake";
  EXPECT_TRUE(reader.sleep());
  writer.write(std::span(bytes).first(1));
  EXPECT_TRUE(writer.wakes_reader());
  EXPECT_FALSE(writer.wakes_reader());
  EXPECT_FALSE(reader.sleep()) << "a byte has come";
  EXPECT_FALSE(writer.wakes_reader()) << "it did not sleep";
  EXPECT_FALSE(writer.sleep()) << "there is room";
  writer.write(std::span(bytes).first(kRing - 1));
  EXPECT_TRUE(writer.sleep());
  reader.take(kRing / 2 - 1);
  EXPECT_FALSE(reader.wakes_writer()) << "not for a few bytes";
  reader.take(1);
  EXPECT_TRUE(reader.wakes_writer());
  EXPECT_FALSE(reader.wakes_writer());
}

TEST(SharedMemory, counts_that_cannot_be_are_seen_and_reach_no_memory) {
  Shared shared;
  RingWriter honest = shared.maker.writer();
  RingReader reader = shared.taker.reader();
  // The other process may write anything into the header: here, the counts of a ring that is twice
  // as large.
  const std::vector<std::byte> bytes(kRing);
  honest.write(bytes);
  honest.write(std::span(bytes).first(1));
  EXPECT_FALSE(reader.here().has_value());
  EXPECT_FALSE(reader.sleep());
  EXPECT_FALSE(honest.room().has_value());
  EXPECT_EQ(honest.unread(), 0U);
  RingReader ahead = shared.maker.reader();
  RingWriter behind = shared.taker.writer();
  ahead.take(1);
  EXPECT_FALSE(behind.room().has_value());
  EXPECT_FALSE(behind.sleep());
}

TEST(SharedMemory, only_a_sealed_memory_of_the_right_size_is_taken) {
  const std::size_t whole = kRing * 2 + (64U << 10);
  const auto taken = [](int descriptor, std::size_t ring) {
    const auto result = SharedMemory::take(descriptor, ring);
    ::close(descriptor);
    return result.ok();
  };
  const auto memory = [&](std::size_t bytes, int seals) {
    const int fd = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(::ftruncate(fd, static_cast<off_t>(bytes)), 0);
    EXPECT_EQ(::fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
  };
  constexpr int kAll = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  EXPECT_TRUE(taken(memory(whole, kAll), kRing));
  EXPECT_FALSE(taken(memory(whole - 1, kAll), kRing)) << "too small: a read would end the process";
  EXPECT_FALSE(taken(memory(whole, F_SEAL_GROW), kRing)) << "it can still be cut";
  EXPECT_FALSE(taken(memory(whole, kAll | F_SEAL_WRITE), kRing)) << "it cannot be written";
  EXPECT_FALSE(taken(::open("/dev/zero", O_RDWR | O_CLOEXEC), kRing));
  EXPECT_FALSE(SharedMemory::take(-1, kRing).ok());
  for (const std::size_t ring : {std::size_t{0}, kRing + 4096, kRing / 2, 2 * kRingBytesMax}) {
    EXPECT_FALSE(taken(memory(2 * ring + (64U << 10), kAll), ring)) << ring;
  }
  EXPECT_FALSE(SharedMemory::make(2 * kRingBytesMax).ok());
}

TEST(SharedMemory, what_cannot_be_mapped_is_an_error_at_both_ends_and_leaves_nothing) {
  constexpr std::size_t kRings = 8U << 20;
  const SharedMemory maker = std::move(SharedMemory::make(kRings)).value();
  const std::size_t mapped = test::mapped_bytes();
  Error made;
  Error taken;
  // Some is left, for a sanitizer's own needs: half of one of the two rings.
  test::limited_to(RLIMIT_AS, mapped + kRings / 2, [&] {
    made = SharedMemory::make(kRings).error();
    taken = SharedMemory::take(maker.descriptor(), kRings).error();
  });
  EXPECT_EQ(made.text, "shared memory cannot be mapped: cannot allocate memory");
  EXPECT_EQ(taken.text, made.text);
  EXPECT_LT(test::mapped_bytes(), mapped + kRings);
  EXPECT_TRUE(SharedMemory::take(maker.descriptor(), kRings).ok());
}

TEST(SharedMemory, a_forked_child_does_not_have_it) {
  Shared shared;
  const auto here = shared.taker.reader().here();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    unsigned char present = 0;
    auto* const page = const_cast<std::byte*>(here->data());
    ::_exit(::mincore(page, 1, &present) == 0 ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "the child has a mapping there";
}

}  // namespace
}  // namespace pccl
