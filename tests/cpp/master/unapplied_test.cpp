// The count of what waits for the register: its limits, and that it forgets.
#include "master/unapplied.h"

#include <gtest/gtest.h>

namespace pccl::master {
namespace {

constexpr std::size_t kMost = kUnappliedBytesMax - kUnappliedMessageBytes;  // of one message
constexpr std::size_t kLittle = 1000;

TEST(Unapplied, each_peer_has_its_limit_and_short_messages_count_too) {
  Unapplied unapplied;
  EXPECT_FALSE(unapplied.add(PeerId{1}, kMost + 1));
  EXPECT_TRUE(unapplied.empty()) << "nothing stays of a message that is refused";
  EXPECT_TRUE(unapplied.add(PeerId{1}, kMost));
  EXPECT_FALSE(unapplied.add(PeerId{1}, 0));
  EXPECT_TRUE(unapplied.add(PeerId{2}, 0));
  unapplied.remove(PeerId{1}, kMost);
  EXPECT_TRUE(unapplied.add(PeerId{1}, 0));
  unapplied.remove(PeerId{1}, 0);
  unapplied.remove(PeerId{2}, 0);
  EXPECT_TRUE(unapplied.empty());
}

TEST(Unapplied, a_few_that_flood_take_the_room_of_all_and_not_that_of_the_others) {
  Unapplied unapplied;
  const std::uint64_t floods = kUnappliedBytesOfAllMax / kUnappliedBytesMax;
  for (std::uint64_t peer = 1; peer <= floods; ++peer) {
    EXPECT_TRUE(unapplied.add(PeerId{peer}, kMost)) << peer;
  }
  const PeerId late{floods + 1};
  EXPECT_FALSE(unapplied.add(late, kUnappliedBytesInAnyCase));
  std::size_t taken = 0;
  while (unapplied.add(late, kLittle)) taken += kLittle + kUnappliedMessageBytes;
  EXPECT_GT(taken, kUnappliedBytesInAnyCase - kLittle - 2 * kUnappliedMessageBytes);
  EXPECT_LE(taken, kUnappliedBytesInAnyCase);
  EXPECT_TRUE(unapplied.add(PeerId{floods + 2}, kLittle)) << "each peer has that";
  EXPECT_FALSE(unapplied.add(PeerId{1}, 0));
  unapplied.remove(PeerId{1}, kMost);
  EXPECT_TRUE(unapplied.add(late, kUnappliedBytesInAnyCase)) << "there is room again";
}

}  // namespace
}  // namespace pccl::master
