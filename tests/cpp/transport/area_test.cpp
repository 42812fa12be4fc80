// The area of a process: its slots, what another process sees of them, and what a forked child has.
#include "transport/area.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "limited.h"
#include "support.h"

namespace pccl {
namespace {

/// The area of one process, and what another one has mapped of it.
struct Lent {
  std::shared_ptr<OwnArea> own = std::move(OwnArea::make()).value();
  std::shared_ptr<const PeerArea> peer = std::move(PeerArea::take(own->descriptor())).value();
};

std::span<std::byte> bytes_of(const OwnArea::Part& part) {
  return {part.data(), part.slots() * kAreaSlotBytes};
}

TEST(Area, what_one_process_writes_into_its_slots_the_other_one_reads) {
  const Lent lent;
  const auto first = lent.own->take(3);
  const auto second = lent.own->take(1);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->slots(), 3U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first->data()) % (4U << 10), 0U);
  std::ranges::fill(bytes_of(*first), std::byte{3});
  std::ranges::fill(bytes_of(*second), std::byte{4});
  for (std::uint32_t i = 0; i < 3; ++i) {
    const auto place = lent.own->place_of(first->data() + i * kAreaSlotBytes);
    ASSERT_TRUE(place);
    EXPECT_EQ(*place, (AreaPlace{i, 1}));
    EXPECT_TRUE(lent.peer->holds(*place));
    EXPECT_EQ(std::count(lent.peer->at(i), lent.peer->at(i) + kAreaSlotBytes, std::byte{3}),
              static_cast<std::ptrdiff_t>(kAreaSlotBytes));
  }
  const auto place = lent.own->place_of(second->data());
  ASSERT_TRUE(place);
  EXPECT_EQ(*place, (AreaPlace{3, 1}));
  EXPECT_EQ(*lent.peer->at(3), std::byte{4});
}

TEST(Area, only_the_begin_of_a_taken_slot_is_a_place) {
  const Lent lent;
  auto part = lent.own->take(2);
  ASSERT_TRUE(part);
  const std::byte* const begin = part->data();
  EXPECT_TRUE(lent.own->place_of(begin + kAreaSlotBytes));
  const std::byte other{};
  for (const std::byte* at :
       {begin + 1, begin + kAreaSlotBytes - 1, begin - 1, begin - kAreaHeaderBytes,
        begin + 2 * kAreaSlotBytes, begin + kAreaSlots * kAreaSlotBytes, &other,
        static_cast<const std::byte*>(nullptr), lent.peer->at(0)}) {
    EXPECT_FALSE(lent.own->place_of(at));
  }
  part.reset();
  EXPECT_FALSE(lent.own->place_of(begin)) << "it has been given back";
}

TEST(Area, the_lowest_slots_that_fit_are_taken_again_with_another_generation) {
  const Lent lent;
  auto first = lent.own->take(2);
  auto second = lent.own->take(1);
  auto third = lent.own->take(2);
  ASSERT_TRUE(first && second && third);
  const std::byte* const begin = first->data();
  const AreaPlace before = *lent.own->place_of(begin);
  first.reset();
  EXPECT_TRUE(lent.peer->holds(before)) << "nobody has taken the slot since";
  const auto wide = lent.own->take(3);
  ASSERT_TRUE(wide);
  EXPECT_EQ(wide->data(), begin + 5 * kAreaSlotBytes) << "two free slots are too few";
  const auto again = lent.own->take(2);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->data(), begin);
  EXPECT_FALSE(lent.peer->holds(before));
  EXPECT_EQ(*lent.own->place_of(begin), (AreaPlace{before.slot, before.generation + 1}));
  EXPECT_TRUE(lent.peer->holds(*lent.own->place_of(begin)));
  EXPECT_EQ(*lent.own->place_of(second->data()), (AreaPlace{2, 1}));
}

TEST(Area, a_slot_that_does_not_exist_or_was_never_taken_holds_nothing) {
  const Lent lent;
  EXPECT_NE(lent.peer->at(kAreaSlots - 1), nullptr);
  EXPECT_EQ(lent.peer->at(kAreaSlots), nullptr);
  EXPECT_EQ(lent.peer->at(~0U), nullptr);
  for (const std::uint32_t slot : {0U, kAreaSlots - 1, kAreaSlots, ~0U}) {
    for (const std::uint64_t generation : {0U, 1U}) {
      EXPECT_FALSE(lent.peer->holds({slot, generation})) << slot << " " << generation;
    }
  }
}

TEST(Area, an_exhausted_area_gives_none) {
  const Lent lent;
  EXPECT_FALSE(lent.own->take(0));
  EXPECT_FALSE(lent.own->take(kAreaSlots + 1));
  EXPECT_FALSE(lent.own->take(~0U));
  std::vector<OwnArea::Part> parts;
  for (std::uint32_t i = 0; i < kAreaSlots; ++i) parts.push_back(*lent.own->take(1));
  EXPECT_FALSE(lent.own->take(1));
  parts.erase(parts.begin() + 3);
  parts.erase(parts.begin() + 8);
  EXPECT_FALSE(lent.own->take(2)) << "the two that are free are not neighbours";
  EXPECT_TRUE(lent.own->take(1));
  parts.clear();
  EXPECT_TRUE(lent.own->take(kAreaSlots));
}

TEST(Area, a_part_moves_and_gives_its_slots_back_once) {
  const Lent lent;
  auto first = *lent.own->take(1);
  OwnArea::Part moved = std::move(first);
  EXPECT_EQ(*lent.own->place_of(moved.data()), (AreaPlace{0, 1}));
  auto second = *lent.own->take(1);
  std::byte* const at = second.data();
  moved = std::move(second);
  EXPECT_EQ(moved.data(), at);
  EXPECT_TRUE(lent.own->place_of(at));
  EXPECT_FALSE(lent.own->place_of(at - kAreaSlotBytes)) << "the first slot is free";
}

TEST(Area, a_part_outlives_the_area) {
  Lent lent;
  auto part = lent.own->take(2);
  ASSERT_TRUE(part);
  lent.own.reset();
  std::ranges::fill(bytes_of(*part), std::byte{5});
  EXPECT_EQ(*lent.peer->at(1), std::byte{5});
  part.reset();
  EXPECT_EQ(*lent.peer->at(1), std::byte{5}) << "the other process keeps the memory";
}

/// The bytes of an area that lie in memory.
std::size_t bytes_held(const OwnArea& area) {
  struct stat seen{};
  EXPECT_EQ(::fstat(area.descriptor(), &seen), 0);
  return static_cast<std::size_t>(seen.st_blocks) * 512;
}

TEST(Area, slots_get_their_memory_when_they_are_first_taken) {
  const auto own = std::move(OwnArea::make()).value();
  EXPECT_EQ(bytes_held(*own), kAreaHeaderBytes);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(own->take(2));
    EXPECT_EQ(bytes_held(*own), kAreaHeaderBytes + 2 * kAreaSlotBytes);
  }
}

TEST(Area, where_the_system_has_no_memory_for_a_slot_only_the_others_are_taken) {
  const auto own = std::move(OwnArea::make()).value();
  EXPECT_TRUE(own->take(1));
  const int none = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::dup2(none, own->descriptor()), own->descriptor());
  ::close(none);
  EXPECT_FALSE(own->take(2));
  const auto part = own->take(1);
  ASSERT_TRUE(part);
  EXPECT_EQ(own->place_of(part->data()), (AreaPlace{0, 2}));
  EXPECT_FALSE(own->take(1));
}

/// A reader that asks before and after sees no byte of another use. The writer counts, and writes
/// its count everywhere.
TEST(Area, what_was_read_between_two_yeses_is_of_one_use) {
  constexpr int kUses = 3000;
  const Lent lent;
  std::atomic<std::uint64_t> shown{0};
  std::thread writer([&] {
    for (int i = 0; i < kUses; ++i) {
      const auto part = lent.own->take(1);
      const AreaPlace place = *lent.own->place_of(part->data());
      auto* const numbers = reinterpret_cast<std::atomic<std::uint64_t>*>(part->data());
      for (std::size_t at = 0; at < 512; ++at) {
        numbers[at * 32].store(place.generation, std::memory_order_relaxed);
      }
      shown.store(place.generation, std::memory_order_release);
    }
  });
  std::uint64_t wrong = 0;
  while (shown.load() < kUses) {
    const AreaPlace place{0, shown.load(std::memory_order_acquire)};
    if (!lent.peer->holds(place)) continue;
    std::uint64_t others = 0;
    const auto* const numbers =
        reinterpret_cast<const std::atomic<std::uint64_t>*>(lent.peer->at(0));
    for (std::size_t at = 0; at < 512; ++at) {
      others += numbers[at * 32].load(std::memory_order_relaxed) == place.generation ? 0U : 1U;
    }
    if (lent.peer->holds(place)) wrong += others;
  }
  writer.join();
  EXPECT_EQ(wrong, 0U);
}

TEST(Area, only_a_sealed_memory_of_the_right_size_is_taken) {
  const auto error = [](int descriptor) {
    const auto result = PeerArea::take(descriptor);
    ::close(descriptor);
    return result.error();
  };
  const auto memory = [](std::size_t bytes, int seals) {
    const int fd = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(::ftruncate(fd, static_cast<off_t>(bytes)), 0);
    EXPECT_EQ(::fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
  };
  constexpr int kAll = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  EXPECT_EQ(error(memory(kAreaBytes, kAll)), Error{});
  EXPECT_EQ(error(memory(kAreaBytes, kAll | F_SEAL_WRITE)), Error{}) << "it is only read";
  const Error none{ErrorCode::malformed, "what it passes is not a sealed memory of an area"};
  EXPECT_EQ(error(memory(kAreaBytes - 1, kAll)), none);
  EXPECT_EQ(error(memory(kAreaBytes + 1, kAll)), none);
  EXPECT_EQ(error(memory(kAreaBytes, F_SEAL_GROW | F_SEAL_SEAL)), none) << "it can still be cut";
  EXPECT_EQ(error(memory(kAreaBytes, F_SEAL_SHRINK)), none);
  EXPECT_EQ(error(::open("/dev/zero", O_RDONLY | O_CLOEXEC)), none);
  EXPECT_EQ(error(-1), none);
}

TEST(Area, nobody_but_its_owner_writes_into_it) {
  const Lent lent;
  const int descriptor = lent.own->descriptor();
  void* const mapped =
      ::mmap(nullptr, kAreaBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  EXPECT_EQ(mapped, MAP_FAILED);
  EXPECT_EQ(::pwrite(descriptor, "x", 1, kAreaHeaderBytes), -1);
  EXPECT_NE(::fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kAreaBytes), 0);
  const auto part = lent.own->take(kAreaSlots);
  ASSERT_TRUE(part) << "it still gets memory for its slots";
  std::ranges::fill(bytes_of(*part), std::byte{3});
  EXPECT_EQ(*lent.peer->at(kAreaSlots - 1), std::byte{3});
}

TEST(Area, a_memory_that_cannot_be_read_is_not_taken) {
  const Lent lent;
  const std::string name = "/proc/self/fd/" + std::to_string(lent.own->descriptor());
  const int reading = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
  const int writing = ::open(name.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_TRUE(reading >= 0 && writing >= 0);
  EXPECT_TRUE(PeerArea::take(reading).ok());
  const Error refused = PeerArea::take(writing).error();
  EXPECT_EQ(refused.code, ErrorCode::unreachable);
  EXPECT_EQ(refused.text, "shared memory cannot be mapped: permission denied");
  ::close(reading);
  ::close(writing);
}

TEST(Area, what_cannot_be_mapped_is_an_error_at_both_ends_and_leaves_nothing) {
  const Lent lent;
  const std::size_t mapped = test::mapped_bytes();
  const int next = ::dup(lent.own->descriptor());
  ::close(next);
  Error made;
  Error taken;
  // Half is left for a sanitizer's own needs.
  test::limited_to(RLIMIT_AS, mapped + kAreaBytes / 2, [&] {
    made = OwnArea::make().error();
    taken = PeerArea::take(lent.own->descriptor()).error();
  });
  EXPECT_EQ(made.code, ErrorCode::unreachable);
  EXPECT_EQ(made.text, "shared memory cannot be mapped: cannot allocate memory");
  EXPECT_EQ(taken, made);
  const int after = ::dup(lent.own->descriptor());
  ::close(after);
  EXPECT_EQ(after, next) << "a descriptor is open";
  EXPECT_TRUE(PeerArea::take(lent.own->descriptor()).ok());
}

TEST(Area, a_process_without_a_free_descriptor_has_no_area) {
  Error made;
  test::limited_to(RLIMIT_NOFILE, 0, [&] { made = OwnArea::make().error(); });
  EXPECT_EQ(made, (Error{ErrorCode::unreachable, "no shared memory: too many open files"}));
}

TEST(Area, a_forked_child_does_not_have_it_and_unmaps_nothing_of_its_own) {
  Lent lent;
  auto part = lent.own->take(2);
  ASSERT_TRUE(part);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // At the addresses of both areas lies something of the child's.
    for (const std::byte* at : {static_cast<const std::byte*>(part->data()), lent.peer->at(0)}) {
      void* const begin = const_cast<std::byte*>(at - kAreaHeaderBytes);
      void* const here = ::mmap(begin, kAreaBytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
      if (here != begin) ::_exit(1);
    }
    auto* const first = reinterpret_cast<volatile std::byte*>(part->data());
    auto* const second = reinterpret_cast<volatile std::byte*>(
        const_cast<std::byte*>(lent.peer->at(kAreaSlots - 1)));
    const int descriptor = lent.own->descriptor();
    part.reset();
    lent = Lent{nullptr, nullptr};
    if (::fcntl(descriptor, F_GETFD) == -1) ::_exit(2);  // it may be something else's by now
    *first = std::byte{1};
    *second = std::byte{1};
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  std::ranges::fill(bytes_of(*part), std::byte{6});
  EXPECT_EQ(*lent.peer->at(1), std::byte{6}) << "the parent goes on";
}

}  // namespace
}  // namespace pccl
