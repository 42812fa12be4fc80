// The areas of two processes, passed over the stream between them: who gets one, what follows from
// one that is none, and from an end that lies.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <vector>

#include "limited.h"
#include "recorder.h"
#include "shared_ends.h"
#include "support.h"
#include "transport/area.h"
#include "transport/local_socket.h"
#include "transport/shared_memory.h"

namespace pccl {
namespace {

using Outcome = Stream::Outcome;
using test::BothEnds;
using test::Ends;
using test::kStreamRing;
using test::LyingEnd;
using test::offer_of;

std::shared_ptr<OwnArea> an_area() { return std::move(OwnArea::make()).value(); }

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

/// Does `reader` read what `own` has in its lowest free slot?
bool reads_from(const Stream& reader, OwnArea& own) {
  const auto part = own.take(1);
  const auto place = own.place_of(part->data());
  const auto area = reader.peer_area();
  const auto value = static_cast<std::byte>(place->generation + 40);
  *part->data() = value;
  return area && area->holds(*place) && *area->at(place->slot) == value;
}

/// One byte over the stream's rings.
bool works(BothEnds& pair) {
  for (int i = 0; i < 2; ++i) {
    const std::byte byte{7};
    if (pair.ends[i]->write(std::span(&byte, 1)).bytes != 1) return false;
    pair.can_read[1 - i] = false;
    pair.ends[1 - i]->want(true, false);
    if (!pair.until([&] { return pair.can_read[1 - i]; })) return false;
    std::byte got{};
    if (pair.ends[1 - i]->read(std::span(&got, 1)).bytes != 1 || got != byte) return false;
  }
  return true;
}

/// Both ends, which lend these areas; null: none.
struct LendingEnds : BothEnds {
  LendingEnds(std::shared_ptr<OwnArea> diallers, std::shared_ptr<OwnArea> acceptors,
              std::size_t ring = kStreamRing)
      : BothEnds(ring) {
    if (diallers) ends[0]->lend(std::move(diallers));
    if (acceptors) ends[1]->lend(std::move(acceptors));
  }
  bool begun() {
    return until([&] { return can_write[0] && can_write[1]; });
  }
};

TEST(PassedArea, each_end_reads_the_area_of_the_other_one_if_that_has_one) {
  {  // The first loop of a process keeps a pipe for signals.
    const BothEnds first(kStreamRing);
  }
  for (const bool dials : {false, true}) {
    for (const bool accepts : {false, true}) {
      const auto before = open_descriptors();
      {
        const std::shared_ptr<OwnArea> owns[2] = {dials ? an_area() : nullptr,
                                                  accepts ? an_area() : nullptr};
        LendingEnds pair(owns[0], owns[1]);
        ASSERT_TRUE(pair.begun());
        ASSERT_TRUE(pair.until(
            [&] { return pair.ends[0]->lends() == dials && pair.ends[1]->lends() == accepts; }));
        EXPECT_TRUE(works(pair));
        for (int i = 0; i < 2; ++i) {
          EXPECT_EQ(pair.ends[i]->carrier(), Stream::Carrier::shared_memory);
          EXPECT_EQ(pair.ends[i]->lends(), owns[i] != nullptr) << i << dials << accepts;
          EXPECT_EQ(pair.ends[1 - i]->peer_area() != nullptr, owns[i] != nullptr);
          if (owns[i]) {
            EXPECT_TRUE(reads_from(*pair.ends[1 - i], *owns[i])) << i;
          }
        }
        const auto kept = pair.ends[0]->peer_area();
        for (const auto& end : pair.ends) {
          end->close();
          EXPECT_EQ(end->peer_area(), nullptr);
          EXPECT_FALSE(end->lends());
        }
        if (kept) {
          const auto part = owns[1]->take(1);
          EXPECT_TRUE(kept->holds(*owns[1]->place_of(part->data()))) << "whoever has it keeps it";
        }
      }
      EXPECT_EQ(open_descriptors(), before) << dials << accepts;
    }
  }
}

TEST(PassedArea, an_area_may_come_long_after_the_beginning_and_only_once) {
  BothEnds pair;
  ASSERT_TRUE(pair.until([&] { return pair.can_write[0] && pair.can_write[1]; }));
  EXPECT_TRUE(works(pair));
  EXPECT_EQ(pair.ends[1]->peer_area(), nullptr);
  const auto first = an_area();
  pair.ends[0]->lend(first);
  ASSERT_TRUE(pair.until([&] { return pair.ends[0]->lends(); }));
  EXPECT_TRUE(reads_from(*pair.ends[1], *first));
  pair.ends[0]->lend(an_area());
  test::pass(pair.loop, 5);
  EXPECT_TRUE(works(pair));
  EXPECT_TRUE(reads_from(*pair.ends[1], *first));
}

TEST(PassedArea, without_memory_there_are_no_areas) {
  LendingEnds pair(an_area(), an_area(), 2 * kRingBytesMax);
  ASSERT_TRUE(pair.begun());
  EXPECT_TRUE(works(pair));
  for (const auto& end : pair.ends) {
    EXPECT_EQ(end->carrier(), Stream::Carrier::unix_socket);
    EXPECT_EQ(end->peer_area(), nullptr);
    EXPECT_FALSE(end->lends());
  }
}

/// Of an area that is none: its descriptor is of something else.
std::shared_ptr<OwnArea> no_area_at_all() {
  auto own = an_area();
  const int other = ::open("/dev/zero", O_RDWR | O_CLOEXEC);
  EXPECT_EQ(::dup2(other, own->descriptor()), own->descriptor());
  ::close(other);
  return own;
}

/// Of an area whose descriptor is closed; the number is not the next one that is given out.
std::shared_ptr<OwnArea> closed_area() {
  std::vector<int> lower;
  for (int i = 0; i < 16; ++i) lower.push_back(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  auto own = an_area();
  ::close(own->descriptor());
  for (const int fd : lower) ::close(fd);
  return own;
}

TEST(PassedArea, an_area_that_is_none_or_cannot_be_passed_leaves_the_rings_and_the_other_area) {
  for (const bool closed : {false, true}) {
    for (const int lacks : {0, 1}) {
      test::LogLines log(LogLevel::debug);
      const auto bad = closed ? closed_area() : no_area_at_all();
      const std::shared_ptr<OwnArea> owns[2] = {lacks == 0 ? bad : an_area(),
                                                lacks == 1 ? bad : an_area()};
      LendingEnds pair(owns[0], owns[1]);
      ASSERT_TRUE(pair.begun());
      ASSERT_TRUE(pair.until([&] { return pair.ends[1 - lacks]->lends(); }));
      EXPECT_TRUE(works(pair)) << "the rings are there";
      EXPECT_TRUE(reads_from(*pair.ends[lacks], *owns[1 - lacks]));
      EXPECT_EQ(pair.ends[1 - lacks]->peer_area(), nullptr);
      EXPECT_FALSE(pair.ends[lacks]->lends());
      EXPECT_EQ(log.count(closed ? "goes without the area of this process: bad file descriptor"
                                 : "goes without the area of the other process: what it passes"),
                1U);
      EXPECT_EQ(log.count("goes without"), 1U);
    }
  }
}

TEST(PassedArea, an_area_that_cannot_be_mapped_leaves_the_rings) {
  const auto own = an_area();  // which stays mapped
  LendingEnds pair(own, nullptr);
  bool begun = false;
  // Half of an area is left for the rings and for a sanitizer's own needs.
  test::limited_to(RLIMIT_AS, test::mapped_bytes() + kAreaBytes / 2, [&] {
    test::LogLines log(LogLevel::debug);
    begun = pair.begun();
    EXPECT_TRUE(pair.until([&] {
      return log.count("the area of the other process: shared memory cannot be mapped");
    }));
  });
  ASSERT_TRUE(begun);
  EXPECT_TRUE(works(pair));
  EXPECT_EQ(pair.ends[1]->carrier(), Stream::Carrier::shared_memory);
  EXPECT_EQ(pair.ends[1]->peer_area(), nullptr);
  EXPECT_FALSE(pair.ends[0]->lends());
}

/// A bare socket with the rings' memory, whose other end has begun.
struct LyingDialler : LyingEnd {
  explicit LyingDialler(std::shared_ptr<OwnArea> lent = nullptr) {
    watch(acceptor(loop));
    if (lent) stream->lend(std::move(lent));
    EXPECT_EQ(::fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
    EXPECT_EQ(send_with_descriptor(fds[0], offer_of(kStreamRing), memory.descriptor()), 8);
    EXPECT_TRUE(test::poll_until(
        loop, [&] { return stream->carrier() == Stream::Carrier::shared_memory; }));
  }
  void say(int byte, int descriptor = -1) {
    const auto what = static_cast<std::byte>(byte);
    const auto bytes = std::span(&what, 1);
    const auto sent = descriptor < 0 ? ::send(fds[0], &what, 1, 0)
                                     : send_with_descriptor(fds[0], bytes, descriptor);
    EXPECT_EQ(sent, 1);
    test::pass(loop, 5);
  }
  /// What it has heard since the answer, or since the last time.
  std::vector<std::byte> heard() {
    std::array<std::byte, 64> in{};
    const auto got = ::recv(fds[0], in.data(), in.size(), MSG_DONTWAIT);
    const auto end = in.begin() + std::max<std::ptrdiff_t>(got, 0);
    return {in.begin(), end};
  }
  SharedMemory memory = std::move(SharedMemory::make(kStreamRing)).value();
};

TEST(PassedArea, only_a_descriptor_of_an_area_brings_one_whatever_is_said) {
  const auto before = open_descriptors();
  {
    const auto own = an_area();
    LyingDialler liar;
    EXPECT_EQ(liar.heard().size(), 8U) << "the answer";
    liar.say(2);
    liar.say(1, liar.memory.descriptor());
    liar.say(2, liar.memory.descriptor());
    liar.say(2, liar.fds[0]);
    EXPECT_EQ(liar.stream->peer_area(), nullptr);
    EXPECT_TRUE(liar.heard().empty());
    liar.say(2, own->descriptor());
    const auto area = liar.stream->peer_area();
    EXPECT_NE(area, nullptr);
    EXPECT_EQ(liar.heard(), std::vector<std::byte>{std::byte{3}});
    for (int i = 0; i < 100; ++i) liar.say(2, an_area()->descriptor());
    EXPECT_EQ(liar.stream->peer_area(), area);
    EXPECT_EQ(liar.outcome, Outcome::later);
    ::close(liar.fds[0]);
    EXPECT_TRUE(liar.ends_with(Outcome::ended));
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(PassedArea, only_who_has_passed_an_area_believes_that_it_is_mapped) {
  for (const bool passes : {false, true}) {
    LyingDialler liar(passes ? an_area() : nullptr);
    for (const int any : {0, 1, 2, 255}) {
      liar.say(any);
      EXPECT_FALSE(liar.stream->lends()) << any;
    }
    liar.say(3);
    EXPECT_EQ(liar.stream->lends(), passes);
    const std::byte bytes[3] = {};
    liar.memory.writer().write(bytes);
    liar.say(1);
    EXPECT_EQ(liar.outcome, Outcome::moved) << "each of them rings";
    ::close(liar.fds[0]);
  }
}

/// Of the links of a process: which of its peers have its area.
std::size_t areas_in_use() {
  std::ifstream maps("/proc/self/maps");
  std::size_t areas = 0;
  for (std::string line; std::getline(maps, line);) {
    areas += line.find("/memfd:pccl area") != std::string::npos ? 1 : 0;
  }
  return areas;
}

TEST(PassedArea, who_only_dials_a_process_gets_none) {
  LinkOptions options;
  options.shared_memory = true;
  test::Pair pair(options);
  ASSERT_EQ(areas_in_use(), 2U) << "one of each process";
  pair.low.links->open(pair.high.handle(), 30000, false);
  ASSERT_TRUE(pair.until([&] { return pair.low.events.ups == 1; }));
  test::pass(pair.loop, 20);
  EXPECT_EQ(areas_in_use(), 3U) << "the one that dials wants the link, and lends";
  pair.high.links->open(pair.low.handle(), 30000, false);
  ASSERT_TRUE(pair.until([&] { return areas_in_use() == 4; }));
}

}  // namespace
}  // namespace pccl
