// Whom Stall finds if nothing passes from one member to another. The real operations of all ranks
// run in one process, and messages from one rank to another are lost; when nothing moves any more,
// each rank asks its Stall. For all kinds of collectives, 2 to 6 ranks, every root and every pair.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/stall.h"

namespace pccl::blame_test {
namespace {

const OpKey kOp{3, 7};
constexpr std::uint64_t kLimitMs = 1000;
constexpr std::uint64_t kTickMs = 250;

/// The rank that waits, and the rank that it finds at fault.
using Blame = std::pair<std::uint32_t, std::uint32_t>;

struct Collective {
  OpKind kind = OpKind::barrier;
  std::uint64_t bytes = 0;  // of each buffer
  bool rooted = false;
  Lines lines = {};
  std::uint32_t sites = 0;  // at which the ranks stand, one behind the other

  friend void PrintTo(const Collective& c, std::ostream* out) {
    *out << kind_name(c.kind) << " of " << c.bytes << " bytes, " << c.lines.farthest_us << " us";
  }
};

/// What happens to the messages of `from` to `to` after the first `passed` ones.
struct Fault {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::size_t passed = 0;
  bool taken = true;  // by the sender's kernel, so that the sender takes them for sent
};

/// Contents do not matter here, so that the operations of all ranks have the same memory.
struct Memory {
  explicit Memory(std::uint64_t bytes) : input(bytes), output(bytes) {}
  std::vector<std::byte> input;
  std::vector<std::byte> output;
  BufferPool pool{64U << 20};
};

/// The ranks of one operation.
class BlamedRanks {
 public:
  BlamedRanks(const Collective& what, std::uint32_t size, std::uint32_t root, Memory& memory)
      : lines_(what.lines) {
    if (what.sites > 0) {
      lines_.neighbour_us = lines_.farthest_us * what.sites / std::max(size, what.sites);
      std::vector<std::uint32_t> sites(size);
      for (std::uint32_t r = 0; r < size; ++r) sites[r] = r * what.sites / size;
      lines_.sites = numbered_sites(sites);
    }
    for (std::uint32_t r = 0; r < size; ++r) {
      members_.push_back(std::make_unique<Member>());
      Member& member = *members_.back();
      member.sends.all = &messages_;
      member.sends.from = r;
      contributors_.push_back(r);
      peers_.push_back(PeerId{r + 1});
      OpRequest request = request_of(what, size, what.rooted ? static_cast<int>(root) : -1, r);
      for (Buffer& b : request.inputs) b.data = memory.input.data();
      for (Buffer& b : request.outputs) b.data = memory.output.data();
      member.operations.add(std::make_unique<Operation>(memory.pool, kOp, std::move(request),
                                                        std::make_shared<Ticket>()),
                            nullptr);
    }
  }

  /// Runs until nothing moves any more. True: messages were lost.
  bool run(const Fault& fault) {
    for (std::uint32_t r = 0; r < members_.size(); ++r) {
      members_[r]->pending().contributors = peers_;
      op(r).start(members_[r]->sends, contributors_, r, 1, /*keep_preimage=*/false, lines_);
    }
    std::size_t seen = 0;
    bool lost = false;
    for (; !messages_.empty(); messages_.pop_front()) {
      const Message m = messages_.front();
      if (m.from == fault.from && m.to == fault.to && seen++ >= fault.passed) {
        lost = true;
        if (fault.taken) op(m.from).sent(m.index);
        continue;
      }
      const Result<Placement> at = op(m.to).place(m.from, m.header);
      EXPECT_TRUE(at.ok()) << at.error().text;
      if (!at.ok()) break;
      op(m.to).arrived(m.from, m.header, at.value());
      op(m.from).sent(m.index);
    }
    return lost;
  }

  [[nodiscard]] bool complete() {
    for (std::uint32_t r = 0; r < members_.size(); ++r) {
      if (!op(r).complete()) return false;
    }
    return true;
  }

  /// Whom each rank finds at fault, after times in which all find what there is to find twice.
  std::set<Blame> blames() {
    std::set<Blame> all;
    for (std::uint64_t ms = 0; ms < 3 * kLimitMs; ms += kTickMs) {
      for (std::uint32_t r = 0; r < members_.size(); ++r) {
        Stall& stall = members_[r]->stall;
        const Stall::Findings found = stall.watch(
            members_[r]->operations, {EpochId::make(1, 1), peers_[r], 0, kTickMs, kLimitMs});
        for (const PeerId asked : found.ask) stall.told(asked, answer_of(asked));
        for (const Stall::Fault& f : found.faults) all.emplace(r, rank_of(f.peer));
      }
    }
    return all;
  }

 private:
  struct Message {
    std::uint32_t from = 0;
    std::uint32_t to = 0;
    std::uint32_t index = 0;
    SegmentHeader header;
  };
  struct Port : OperationPort {
    std::deque<Message>* all = nullptr;
    std::uint32_t from = 0;
    void send_segment(Operation&, std::uint32_t to, std::uint32_t channel, std::uint64_t offset,
                      const std::byte*, std::uint32_t bytes, std::uint32_t index) override {
      Message m{from, to, index, {}};
      m.header.channel = channel;
      m.header.offset = offset;
      m.header.bytes = bytes;
      all->push_back(m);
    }
  };
  struct Member {
    Port sends;
    OperationTable operations{GroupKind::elastic, 0};
    Stall stall;
    Pending& pending() { return operations.at(kOp); }
  };

  static OpRequest request_of(const Collective& what, std::uint32_t size, int root,
                              std::uint32_t rank) {
    const bool reduces = what.kind == OpKind::all_reduce || what.kind == OpKind::reduce ||
                         what.kind == OpKind::reduce_scatter;
    const bool at_root = root == static_cast<int>(rank);
    const bool barrier = what.kind == OpKind::barrier;
    const bool has_inputs =
        at_root || (what.kind != OpKind::broadcast && what.kind != OpKind::scatter);
    const bool has_outputs =
        at_root || (what.kind != OpKind::reduce && what.kind != OpKind::gather);
    OpRequest request;
    // Large elements: there are fewer of them to add, and adding them is most of the time.
    request.descriptor = {what.kind, reduces ? ReduceOp::sum : ReduceOp::none, DType::i64, root,
                          what.bytes / sizeof(std::int64_t)};
    const Buffer one{nullptr, what.bytes};
    if (!barrier && has_inputs) request.inputs.assign(input_per_rank(what.kind) ? size : 1, one);
    if (!barrier && has_outputs) request.outputs.assign(output_per_rank(what.kind) ? size : 1, one);
    return request;
  }
  Operation& op(std::uint32_t rank) { return *members_[rank]->pending().op; }
  static std::uint32_t rank_of(PeerId peer) { return static_cast<std::uint32_t>(peer.value - 1); }
  TellIssued answer_of(PeerId peer) {
    TellIssued told;
    told.op = kOp;
    told.issued = OpKey{kOp.step, kOp.index + 1};
    told.waits_at = op(rank_of(peer)).waits_at();
    return told;
  }

  std::deque<Message> messages_;
  std::vector<std::uint32_t> contributors_;
  std::vector<PeerId> peers_;
  Lines lines_;
  std::vector<std::unique_ptr<Member>> members_;
};

constexpr std::uint64_t kFewBytes = 64;
constexpr std::uint64_t kParts = 256U << 10;     // one for each rank: too large to be sent directly
constexpr std::uint64_t kManyPieces = 5U << 19;  // chains of more pieces than they have slots

constexpr std::uint64_t kAreas = 12U << 20;           // through areas, of up to six ranks
constexpr std::uint64_t kAreaParts = kAreas / 6 + 8;  // one for each rank

const Lines kFar{80'000, 80'000};
const Lines kLocal{.local = true};

class BlameOf : public ::testing::TestWithParam<Collective> {};

TEST_P(BlameOf, the_member_whose_data_are_lost_is_blamed_by_the_one_that_misses_them_alone) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "there is one thread, and ThreadSanitizer makes minutes of these seconds";
#endif
  const Collective what = GetParam();
  Memory memory(what.bytes);
  std::size_t losses = 0;
  const auto check = [&](std::uint32_t size, std::uint32_t root, const Fault& fault) {
    BlamedRanks ranks(what, size, root, memory);
    const bool lost = ranks.run(fault);
    losses += lost ? 1 : 0;
    const std::string text = std::to_string(size) + " ranks, root " + std::to_string(root) + ", " +
                             std::to_string(fault.from) + " to " + std::to_string(fault.to) +
                             " after " + std::to_string(fault.passed) +
                             (fault.taken ? ", taken" : ", not taken");
    ASSERT_EQ(ranks.complete(), !lost) << text;
    std::set<Blame> expected;
    if (lost) expected.emplace(fault.to, fault.from);
    EXPECT_EQ(ranks.blames(), expected) << text;
  };
  for (std::uint32_t size = 2; size <= 6; ++size) {
    for (std::uint32_t root = 0; root < (what.rooted ? size : 1); ++root) {
      for (std::uint32_t from = 0; from < size; ++from) {
        for (std::uint32_t to = 0; to < size; ++to) {
          if (from == to) continue;
          const std::size_t many = what.bytes == kAreas ? 23
                                   : what.bytes == kAreaParts
                                       ? 9
                                       : 5;  // beyond what is under way at once
          for (const std::size_t passed : {std::size_t{0}, std::size_t{1}, many}) {
            for (const bool taken : {true, false}) {
              ASSERT_NO_FATAL_FAILURE(check(size, root, {from, to, passed, taken}));
            }
          }
        }
      }
    }
  }
  EXPECT_GT(losses, 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Stall, BlameOf,
    ::testing::Values(
        Collective{OpKind::all_reduce, kFewBytes}, Collective{OpKind::all_reduce, kManyPieces},
        Collective{OpKind::all_reduce, kAreas, false, kLocal},
        Collective{OpKind::all_gather, kAreaParts, false, kLocal},
        Collective{OpKind::reduce_scatter, kAreaParts, false, kLocal},
        Collective{OpKind::reduce, kFewBytes, true}, Collective{OpKind::reduce, kManyPieces, true},
        Collective{OpKind::broadcast, kFewBytes, true},
        Collective{OpKind::broadcast, kManyPieces, true}, Collective{OpKind::all_gather, kFewBytes},
        Collective{OpKind::all_gather, kParts}, Collective{OpKind::reduce_scatter, kFewBytes},
        Collective{OpKind::reduce_scatter, kParts}, Collective{OpKind::gather, kFewBytes, true},
        Collective{OpKind::scatter, kFewBytes, true}, Collective{OpKind::all_to_all, kFewBytes},
        Collective{OpKind::barrier}, Collective{OpKind::all_reduce, kFewBytes, false, kFar},
        Collective{OpKind::all_reduce, kParts, false, kFar},
        Collective{OpKind::all_reduce, kFewBytes, false, kFar, 2},
        Collective{OpKind::all_reduce, kManyPieces, false, kFar, 2},
        Collective{OpKind::all_reduce, kManyPieces, false, kFar, 3},
        Collective{OpKind::all_gather, kParts, false, kFar},
        Collective{OpKind::reduce_scatter, kParts, false, kFar},
        Collective{OpKind::broadcast, kFewBytes, true, kFar},
        Collective{OpKind::reduce, kFewBytes, true, kFar},
        Collective{OpKind::barrier, 0, false, kFar}),
    [](const auto& collective) {
      return std::string(kind_name(collective.param.kind)) +
             (collective.param.bytes > kFewBytes ? "_large" : "") +
             (collective.param.lines == kFar ? "_far" : "") +
             (collective.param.lines.local ? "_local" : "") +
             (collective.param.sites > 0 ? "_sites" + std::to_string(collective.param.sites) : "");
    });

}  // namespace
}  // namespace pccl::blame_test
