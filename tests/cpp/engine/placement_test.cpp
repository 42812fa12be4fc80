// Offsets and lengths from the wire: what names a segment of a range, and what lies outside it.
#include "engine/placement.h"

#include <gtest/gtest.h>

namespace pccl {
namespace {

constexpr std::uint64_t kMiB = kSegmentBytesMax;
constexpr std::uint64_t kLast = ~std::uint64_t{0};

TEST(Placement, a_range_is_cut_into_segments_of_one_mebibyte_and_a_rest) {
  EXPECT_EQ(segments_of(0), 1U);
  EXPECT_EQ(segments_of(kMiB), 1U);
  EXPECT_EQ(segments_of(kMiB + 1), 2U);
  EXPECT_EQ(segments_of(kLast), kLast / kMiB + 1);
  EXPECT_EQ(segments_of(kMiB + 1, kMiB / 4), 5U) << "or of a fourth of it";
  EXPECT_EQ(bytes_of_segment(kMiB + 1, 4, kMiB / 4), 1U);
  EXPECT_EQ(segment_at(kMiB + 1, 3 * kMiB / 4, kMiB / 4, kMiB / 4), 3U);
  EXPECT_EQ(segment_at(kMiB + 1, kMiB / 8, kMiB / 4, kMiB / 4), std::nullopt);
  EXPECT_EQ(segment_at(kMiB + 1, 0, kMiB, kMiB / 4), std::nullopt);
  EXPECT_EQ(bytes_of_segment(0, 0), 0U);
  EXPECT_EQ(bytes_of_segment(kMiB + 5, 0), kMiB);
  EXPECT_EQ(bytes_of_segment(kMiB + 5, 1), 5U);
}

TEST(Placement, only_a_whole_segment_at_its_own_place_has_one) {
  EXPECT_EQ(segment_at(3 * kMiB - 1, 0, kMiB), 0U);
  EXPECT_EQ(segment_at(3 * kMiB - 1, 2 * kMiB, kMiB - 1), 2U);
  EXPECT_EQ(segment_at(0, 0, 0), 0U);
  struct Wrong {
    std::uint64_t bytes, offset;
    std::uint32_t length;
  };
  for (const auto& [bytes, offset, length] : std::initializer_list<Wrong>{
           {3 * kMiB, 1, kMiB},             // not at a multiple
           {3 * kMiB, kMiB, kMiB - 1},      // too short
           {3 * kMiB - 1, 2 * kMiB, kMiB},  // past the end
           {3 * kMiB, 3 * kMiB, 0},         // behind it
           {5, 0, 4},
           {0, 0, 1},
           {kMiB / 2, kLast - 65535, 65536},  // the sum of both is 0
           {5000, kLast - kMiB + 1, kMiB},    // and here, at a multiple
           {kMiB, kLast - kMiB + 1, kMiB},
       }) {
    EXPECT_FALSE(segment_at(bytes, offset, length)) << bytes << " " << offset << " " << length;
  }
  EXPECT_FALSE(lies_inside(16, kLast - 15, 16));
  EXPECT_TRUE(lies_inside(16, 16, 0));
}

TEST(Placement, a_segment_is_taken_once_and_counts_when_it_is_whole) {
  SegmentSet set(2 * kMiB);
  EXPECT_TRUE(set.take(1));
  EXPECT_FALSE(set.take(1));
  EXPECT_FALSE(set.arrived());
  EXPECT_FALSE(set.take(1));
  EXPECT_TRUE(set.take(0));
  EXPECT_TRUE(set.arrived());
}

}  // namespace
}  // namespace pccl
