// Ranks of a request: checked in its own numbering, and said of the same peers in another one.
#include "engine/numbering.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace pccl {
namespace {

Numbering of(std::initializer_list<std::uint64_t> peers) {
  std::vector<PeerId> numbering;
  for (const std::uint64_t peer : peers) numbering.push_back(PeerId{peer});
  return std::make_shared<const std::vector<PeerId>>(std::move(numbering));
}

OpRequest request_of(OpKind kind, std::int32_t root = -1) {
  OpRequest request;
  request.descriptor = {kind, ReduceOp::none, DType::u8, root, 0};
  request.numbering = of({1, 2, 3});
  return request;
}

constexpr PeerId kSelf{2};

std::string misfit_of(const OpRequest& request) {
  const auto error = misfit(request, kSelf);
  return error ? error->text : "";
}

TEST(Numbering, a_rank_that_there_is_not_does_not_fit) {
  EXPECT_EQ(misfit_of(request_of(OpKind::broadcast, 2)), "");
  EXPECT_EQ(misfit_of(request_of(OpKind::broadcast, 3)),
            "broadcast: there is no rank 3 in a group of 3");
  OpRequest message = request_of(OpKind::recv);
  EXPECT_EQ(misfit_of(message), "") << "from any rank";
  message.descriptor.kind = OpKind::send;
  EXPECT_EQ(misfit_of(message), "send: there is no rank -1 in a group of 3");
}

TEST(Numbering, lists_have_one_tensor_for_each_rank_or_none) {
  OpRequest request = request_of(OpKind::all_to_all);
  EXPECT_EQ(misfit_of(request), "");
  request.inputs.resize(3);
  request.outputs.resize(2);
  EXPECT_EQ(misfit_of(request), "all_to_all: one tensor for each of the 3 ranks is needed");
}

TEST(Numbering, what_a_rank_sends_itself_it_receives) {
  std::array<std::byte, 8> memory{};
  OpRequest request = request_of(OpKind::all_to_all);
  request.inputs = {{memory.data(), 1}, {memory.data(), 4}, {memory.data(), 2}};
  request.outputs = {{memory.data(), 3}, {memory.data(), 4}, {memory.data(), 1}};
  EXPECT_EQ(misfit_of(request), "");
  request.outputs[1].bytes = 1;
  EXPECT_EQ(misfit_of(request),
            "all_to_all: this rank sends itself 4 bytes and wants to receive 1");
}

TEST(Numbering, a_request_follows_its_peers_when_others_have_gone) {
  std::array<std::byte, 3> memory{};
  OpRequest request = request_of(OpKind::scatter, 2);
  for (std::byte& byte : memory) request.inputs.push_back({&byte, 1});
  const Numbering now = of({3, 1});
  ASSERT_TRUE(renumber(request, now));
  EXPECT_EQ(request.numbering, now);
  EXPECT_EQ(request.descriptor.root, 0);
  ASSERT_EQ(request.inputs.size(), 2U);
  EXPECT_EQ(request.inputs[0].data, &memory[2]);
  EXPECT_EQ(request.inputs[1].data, &memory[0]);
}

TEST(Numbering, one_buffer_for_all_ranks_stays) {
  std::array<std::byte, 3> memory{};
  OpRequest request = request_of(OpKind::all_reduce);
  request.inputs = {{memory.data(), memory.size()}};
  ASSERT_TRUE(renumber(request, of({2})));
  EXPECT_EQ(request.inputs.size(), 1U);
}

TEST(Numbering, a_rank_that_has_come_or_a_root_that_has_gone_cannot_be_said) {
  OpRequest grown = request_of(OpKind::all_reduce);
  EXPECT_FALSE(renumber(grown, of({1, 2, 3, 4})));
  OpRequest rootless = request_of(OpKind::broadcast, 1);
  EXPECT_FALSE(renumber(rootless, of({1, 3})));
}

TEST(Numbering, data_go_round_the_members_that_the_numbering_has) {
  using Ranks = std::vector<std::size_t>;
  EXPECT_EQ(ranks_along(*of({1, 2, 3}), *of({1, 2, 3})), (Ranks{0, 1, 2}));
  EXPECT_EQ(ranks_along(*of({3, 4, 1}), *of({1, 2, 3})), (Ranks{2, 0}));
}

}  // namespace
}  // namespace pccl
