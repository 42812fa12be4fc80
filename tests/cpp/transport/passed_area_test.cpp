// The areas of two processes, passed over the stream between them: who gets one, what follows from
// one that is none, and from an end that lies.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <vector>

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
using test::pass_to;

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

TEST(PassedArea, each_end_reads_the_area_of_the_other_one_if_that_has_one) {
  for (const bool dials : {false, true}) {
    for (const bool accepts : {false, true}) {
      const auto before = open_descriptors();
      {
        const std::shared_ptr<OwnArea> owns[2] = {dials ? an_area() : nullptr,
                                                  accepts ? an_area() : nullptr};
        BothEnds pair(kStreamRing, owns[0], owns[1]);
        ASSERT_TRUE(pair.until([&] {
          return pair.can_write[0] && pair.can_write[1] &&
                 pair.ends[1]->lends() == (owns[1] != nullptr);
        }));
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

TEST(PassedArea, without_memory_there_are_no_areas) {
  const auto own = an_area();
  BothEnds pair(2 * kRingBytesMax, own, own);
  ASSERT_TRUE(pair.until([&] { return pair.can_write[0] && pair.can_write[1]; }));
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

TEST(PassedArea, an_area_that_is_none_is_not_mapped_and_its_owner_learns_it) {
  set_log_level(LogLevel::debug);
  for (const int lies : {0, 1}) {
    test::LogLines log;
    const std::shared_ptr<OwnArea> owns[2] = {lies == 0 ? no_area_at_all() : an_area(),
                                              lies == 1 ? no_area_at_all() : an_area()};
    BothEnds pair(kStreamRing, owns[0], owns[1]);
    ASSERT_TRUE(pair.until(
        [&] { return pair.can_write[0] && pair.can_write[1] && pair.ends[1 - lies]->lends(); }));
    EXPECT_TRUE(works(pair)) << "the rings are there";
    EXPECT_TRUE(reads_from(*pair.ends[lies], *owns[1 - lies]));
    EXPECT_EQ(pair.ends[1 - lies]->peer_area(), nullptr);
    EXPECT_FALSE(pair.ends[lies]->lends());
    EXPECT_EQ(log.count("goes without the area of the other process: what it passes is not"), 1U);
    EXPECT_EQ(log.count("goes without"), 1U);
  }
  set_log_level(LogLevel::warning);
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

TEST(PassedArea, an_area_that_cannot_be_passed_leaves_the_rings_and_the_other_area) {
  set_log_level(LogLevel::debug);
  for (const int lacks : {0, 1}) {
    test::LogLines log;
    const std::shared_ptr<OwnArea> owns[2] = {lacks == 0 ? closed_area() : an_area(),
                                              lacks == 1 ? closed_area() : an_area()};
    BothEnds pair(kStreamRing, owns[0], owns[1]);
    ASSERT_TRUE(pair.until(
        [&] { return pair.can_write[0] && pair.can_write[1] && pair.ends[1 - lacks]->lends(); }));
    EXPECT_TRUE(works(pair));
    EXPECT_TRUE(reads_from(*pair.ends[lacks], *owns[1 - lacks]));
    EXPECT_EQ(pair.ends[1 - lacks]->peer_area(), nullptr);
    EXPECT_FALSE(pair.ends[lacks]->lends());
    EXPECT_EQ(log.count("goes without the area of this process: bad file descriptor"), 1U);
    EXPECT_EQ(log.count("goes without"), 1U);
  }
  set_log_level(LogLevel::warning);
}

TEST(PassedArea, an_area_that_cannot_be_mapped_leaves_the_rings) {
  const auto own = an_area();
  BothEnds pair(kStreamRing, own);
  std::size_t mapped = 0;
  std::ifstream("/proc/self/statm") >> mapped;
  mapped *= static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  // Half of an area is left for the rings and for a sanitizer's own needs.
  const rlimit little{mapped + kAreaBytes / 2, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &little), 0);
  const bool begun = pair.until([&] { return pair.can_write[0] && pair.can_write[1]; });
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  ASSERT_TRUE(begun);
  EXPECT_TRUE(works(pair));
  EXPECT_EQ(pair.ends[1]->carrier(), Stream::Carrier::shared_memory);
  EXPECT_EQ(pair.ends[1]->peer_area(), nullptr);
  EXPECT_FALSE(pair.ends[0]->lends());
}

/// The acceptor's answer to an offer, and what comes with it.
struct Answer {
  std::array<std::byte, 8> bytes{};
  std::array<int, 2> passed{-1, -1};
};
Answer answer_at(LyingEnd& liar) {
  Answer answer;
  EXPECT_TRUE(test::poll_until(liar.loop, [&] {
    return receive_with_descriptors(liar.fds[0], answer.bytes, answer.passed) == 8;
  }));
  return answer;
}

TEST(PassedArea, an_offer_that_lies_about_an_area_brings_none) {
  const auto before = open_descriptors();
  {
    const auto own = an_area();
    SharedMemory memory = std::move(SharedMemory::make(kStreamRing)).value();
    const int rings = memory.descriptor();
    const int area = own->descriptor();
    struct Offer {
      int says;
      std::vector<int> passed;
      int mapped;
    };
    for (const auto& [says, passed, mapped] :
         {Offer{0, {rings}, 0}, Offer{1, {rings}, 0}, Offer{1, {rings, rings}, 0},
          Offer{0, {rings, area}, 0}, Offer{2, {rings, area}, 0}, Offer{255, {rings, area}, 0},
          Offer{1, {rings, area}, 1}, Offer{1, {rings, area, area, rings}, 1}}) {
      LyingEnd liar;
      liar.watch(liar.acceptor(liar.loop));
      auto offer = offer_of(kStreamRing);
      offer[1] = static_cast<std::byte>(says);
      ASSERT_EQ(::fcntl(liar.fds[0], F_SETFL, O_NONBLOCK), 0);
      ASSERT_EQ(pass_to(liar.fds[0], offer, passed), 8);
      const Answer answer = answer_at(liar);
      const std::array<std::byte, 8> expected{std::byte{1}, static_cast<std::byte>(mapped)};
      EXPECT_EQ(answer.bytes, expected) << says << " " << passed.size();
      EXPECT_EQ(answer.passed, (std::array<int, 2>{-1, -1}));
      EXPECT_EQ(liar.stream->peer_area() != nullptr, mapped == 1);
      ::close(liar.fds[0]);
      EXPECT_TRUE(liar.ends_with(Outcome::ended));
    }
    // The area in place of the rings.
    LyingEnd liar;
    liar.watch(liar.acceptor(liar.loop, own));
    auto offer = offer_of(kStreamRing);
    offer[1] = std::byte{1};
    ASSERT_EQ(::fcntl(liar.fds[0], F_SETFL, O_NONBLOCK), 0);
    ASSERT_EQ(pass_to(liar.fds[0], offer, {area, rings}), 8);
    const Answer answer = answer_at(liar);
    EXPECT_EQ(answer.bytes, (std::array<std::byte, 8>{std::byte{2}}));
    EXPECT_EQ(answer.passed[0], -1) << "without rings no area is passed";
    EXPECT_EQ(liar.stream->peer_area(), nullptr);
    ::close(liar.fds[0]);
    EXPECT_TRUE(liar.ends_with(Outcome::ended));
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(PassedArea, the_acceptor_learns_whether_its_area_is_mapped_from_the_first_byte_alone) {
  for (const int word : {0, 1, 2, 255}) {
    const auto before = open_descriptors();
    {
      LyingEnd liar;
      liar.watch(liar.acceptor(liar.loop, an_area()));
      SharedMemory memory = std::move(SharedMemory::make(kStreamRing)).value();
      ASSERT_EQ(::fcntl(liar.fds[0], F_SETFL, O_NONBLOCK), 0);
      ASSERT_EQ(pass_to(liar.fds[0], offer_of(kStreamRing), {memory.descriptor()}), 8);
      const Answer answer = answer_at(liar);
      EXPECT_EQ(answer.bytes[2], std::byte{1});
      EXPECT_TRUE(PeerArea::take(answer.passed[0]).ok());
      EXPECT_EQ(answer.passed[1], -1);
      ::close(answer.passed[0]);
      EXPECT_FALSE(liar.stream->lends());
      const std::byte bytes[] = {static_cast<std::byte>(word), std::byte{1}, std::byte{1}};
      ASSERT_EQ(::send(liar.fds[0], bytes, 1, 0), 1);
      test::pass(liar.loop, 5);
      EXPECT_EQ(liar.stream->lends(), word == 1) << word;
      ASSERT_EQ(::send(liar.fds[0], bytes + 1, 2, 0), 2);
      memory.writer().write(bytes);
      EXPECT_TRUE(liar.ends_with(Outcome::moved));
      EXPECT_EQ(liar.stream->lends(), word == 1) << "the others are bells";
      ::close(liar.fds[0]);
    }
    EXPECT_EQ(open_descriptors(), before);
  }
}

TEST(PassedArea, what_an_acceptor_has_written_before_it_ended_is_read) {
  for (const bool passes : {false, true}) {
    Ends ends;
    Loop diallers;
    Loop acceptors;
    const auto dialler = ends.dialler(diallers);
    const auto acceptor = ends.acceptor(acceptors, passes ? an_area() : nullptr);
    bool can_write = false;
    acceptor->on_ready([&](bool, bool writable) {
      can_write = can_write || writable;
      acceptor->want(false, !can_write);
    });
    acceptor->want(false, true);
    ASSERT_TRUE(test::run_until(acceptors, [&] { return can_write; }));
    const std::byte bytes[] = {std::byte{1}, std::byte{2}};
    ASSERT_EQ(acceptor->write(bytes).bytes, 2U);
    acceptor->close();  // the dialler has not seen the answer yet, and owes its word
    Stream::Moved got;
    std::array<std::byte, 8> in{};
    dialler->on_ready([&](bool, bool) {
      got = dialler->read(in);
      dialler->want(false, false);
    });
    dialler->want(true, false);
    ASSERT_TRUE(test::run_until(diallers, [&] { return got.outcome != Outcome::later; }));
    EXPECT_EQ(got.outcome, Outcome::moved) << got.error;
    EXPECT_EQ(got.bytes, 2U);
    EXPECT_EQ(in[1], std::byte{2});
  }
}

TEST(PassedArea, an_answer_that_lies_about_an_area_brings_none) {
  const auto before = open_descriptors();
  {
    const auto own = an_area();
    const int area = own->descriptor();
    struct Case {
      bool offers;
      std::array<int, 3> answer;
      std::vector<int> passed;
      int word;  // 0: none comes
    };
    for (const auto& [offers, said, passed, word] :
         {Case{false, {1, 1, 0}, {}, 0}, Case{true, {1, 7, 0}, {}, 0},
          Case{true, {1, 1, 0}, {area}, 0}, Case{false, {1, 0, 3}, {area}, 0},
          Case{false, {1, 0, 1}, {}, 2}, Case{false, {1, 0, 1}, {0}, 2},
          Case{false, {1, 0, 1}, {area, area}, 1}, Case{true, {2, 1, 1}, {area}, 0}}) {
      LyingEnd liar;
      liar.watch(liar.dialler(liar.loop, kStreamRing, offers ? own : nullptr));
      const int other = liar.fds[1];
      ASSERT_EQ(::fcntl(other, F_SETFL, O_NONBLOCK), 0);
      std::array<std::byte, 8> offer{};
      std::array<int, 2> offered{};
      ASSERT_EQ(receive_with_descriptors(other, offer, offered), 8);
      EXPECT_EQ(offer[1], static_cast<std::byte>(offers ? 1 : 0));
      EXPECT_EQ(offered[1] >= 0, offers);
      for (const int fd : offered) {
        if (fd >= 0) ::close(fd);
      }
      std::array<std::byte, 8> answer{};
      for (std::size_t i = 0; i < 3; ++i) answer[i] = static_cast<std::byte>(said[i]);
      ASSERT_EQ(pass_to(other, answer, passed), 8);
      const auto carrier =
          said[0] == 1 ? Stream::Carrier::shared_memory : Stream::Carrier::unix_socket;
      ASSERT_TRUE(test::poll_until(liar.loop, [&] { return liar.stream->carrier() == carrier; }));
      test::pass(liar.loop, 5);
      std::array<std::byte, 4> words{};
      const auto came = ::recv(other, words.data(), words.size(), MSG_DONTWAIT);
      EXPECT_EQ(came, word == 0 ? -1 : 1);
      EXPECT_EQ(words[0], static_cast<std::byte>(word));
      EXPECT_EQ(liar.stream->peer_area() != nullptr, word == 1);
      EXPECT_EQ(liar.stream->lends(), offers && said[0] == 1 && said[1] == 1);
      EXPECT_EQ(liar.outcome, Outcome::later);
      ::close(other);
      EXPECT_TRUE(liar.ends_with(Outcome::ended));
    }
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace pccl
