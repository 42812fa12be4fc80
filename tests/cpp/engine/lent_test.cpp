// One of three ranks takes back what it has lent, while the others still need it. Whom do they wait
// for?
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "engine/operation.h"
#include "transport/area.h"

namespace pccl {
namespace {

constexpr std::uint64_t kLentFloats = 3U << 20;

struct Flying {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint32_t index = 0;
  SegmentHeader header;
  std::vector<std::byte> bytes;
};

class LendingPort final : public OperationPort {
 public:
  LendingPort(std::uint32_t rank, std::deque<Flying>& flying) : rank_(rank), flying_(flying) {}
  std::optional<OwnArea::Part> take_area(std::uint32_t slots) override { return area->take(slots); }
  void send_segment(Operation&, std::uint32_t to, std::uint32_t channel, std::uint64_t offset,
                    const std::byte* data, std::uint32_t bytes, std::uint32_t index) override {
    Flying one{rank_, to, index, {}, {data, data + bytes}};
    one.header.channel = channel;
    one.header.offset = offset;
    one.header.bytes = bytes;
    one.header.in_place = true;
    if (const auto place = area->place_of(data)) one.header.area = *place;
    flying_.push_back(std::move(one));
  }
  std::shared_ptr<OwnArea> area = OwnArea::make().value();

 private:
  std::uint32_t rank_;
  std::deque<Flying>& flying_;
};

/// An all-reduce of three ranks through areas. What rank 2 sends to rank 0 comes last.
class ThreeLenders {
  // Before the operations, which use them to their end.
  BufferPool pool_{1ULL << 30};
  std::deque<Flying> flying_;
  std::vector<std::unique_ptr<LendingPort>> ports_;
  std::vector<std::shared_ptr<const PeerArea>> areas_;

 public:
  ThreeLenders() {
    for (std::uint32_t r = 0; r < 3; ++r) {
      ports_.push_back(std::make_unique<LendingPort>(r, flying_));
      areas_.push_back(PeerArea::take(ports_[r]->area->descriptor()).value());
      OpRequest request;
      request.descriptor.kind = OpKind::all_reduce;
      request.descriptor.reduce = ReduceOp::sum;
      request.descriptor.dtype = DType::f32;
      request.descriptor.count = kLentFloats;
      request.inputs = {{reinterpret_cast<std::byte*>(data[r].data()), kLentFloats * 4}};
      request.outputs = request.inputs;
      ops.push_back(std::make_unique<Operation>(pool_, OpKey{0, 0}, std::move(request),
                                                std::make_shared<Ticket>()));
    }
    Lines lines;
    lines.local = true;
    for (std::uint32_t r = 0; r < 3; ++r) {
      ops[r]->start(*ports_[r], {0, 1, 2}, r, r + 1, true, lines);
    }
  }

  /// `takes_back`: before the last segments come, rank 1 ends its run and uses its slots anew.
  void run(bool takes_back) {
    bool late = false;
    std::deque<Flying> held;
    std::optional<OwnArea::Part> again;
    while (!flying_.empty() || !held.empty()) {
      if (flying_.empty()) {
        if (takes_back && !late) {
          ops[1]->stop();
          again = ports_[1]->area->take(9);
        }
        late = true;
        flying_.swap(held);
      }
      Flying one = std::move(flying_.front());
      flying_.pop_front();
      const bool gone = late && takes_back && (one.from == 1 || one.to == 1);
      if (!late && one.from == 2 && one.to == 0) {
        held.push_back(std::move(one));
      } else if (!gone) {
        deliver(one);
      } else if (one.to == 1) {
        ops[one.from]->sent(one.index);
      }
    }
  }

  std::vector<std::vector<float>> data{3, std::vector<float>(kLentFloats, 1.0F)};
  std::vector<std::unique_ptr<Operation>> ops;

 private:
  void deliver(const Flying& one) {
    if (one.header.area.generation != 0 && !areas_[one.from]->holds(one.header.area)) return;
    Placement at = ops[one.to]->place(one.from, one.header).value();
    if (at.lends) {
      at.lender = areas_[one.from];
    } else if (at.in_parts && !one.bytes.empty()) {
      ops[one.to]->use_part(one.from, one.header, 0, one.bytes);
    } else if (at.to != nullptr && !one.bytes.empty()) {
      std::memcpy(at.to, one.bytes.data(), one.bytes.size());
    }
    ops[one.to]->arrived(one.from, one.header, at);
    if (ops[one.from]->running()) ops[one.from]->sent(one.index);
  }
};

TEST(Lent, what_stays_as_it_was_lent_becomes_the_sum) {
  ThreeLenders at;
  ASSERT_TRUE(at.ops[0]->through_areas());
  at.run(/*takes_back=*/false);
  for (std::uint32_t r = 0; r < 3; ++r) {
    EXPECT_TRUE(at.ops[r]->complete());
    EXPECT_EQ(at.data[r], std::vector<float>(kLentFloats, 3.0F));
  }
}

TEST(Lent, a_rank_that_takes_back_what_it_has_lent_is_waited_for_and_no_honest_one_is_blamed) {
  ThreeLenders at;
  at.run(/*takes_back=*/true);
  const Operation& victim = *at.ops[0];
  EXPECT_FALSE(victim.complete());
  const auto awaited = victim.waiting_for();
  EXPECT_TRUE(std::find(awaited.begin(), awaited.end(), 1U) != awaited.end());
  EXPECT_EQ(victim.waits_at(), victim.waits_at(1)) << "the liar owes the earliest turn";
  EXPECT_LT(victim.waits_at(1), victim.waits_at(2));
  // The other honest rank waits for the victim at a turn that the victim says itself that it has
  // not reached.
  EXPECT_LE(victim.waits_at(), at.ops[2]->waits_at(0));
}

}  // namespace
}  // namespace pccl
