// What a member has sent counts in its window for as long as the receiver keeps it, also when the
// member closes the group meanwhile: else a sound link would be given up.
#include "engine/window.h"

#include "engines.h"

namespace pccl::testing {
namespace {

constexpr std::uint64_t kMayTakeMs = 200;  // what is held back waits longer than that

/// Rank 0 calls `post` in `groups` groups, one after the other, and closes each. Rank 1 keeps what
/// comes, takes what came of the first, and closes them all: then the window of rank 0 is whole.
template <typename Post, typename Take>
void closes_and_leaves_behind(std::size_t groups, Post&& post, Take&& take) {
  FixedWorld world(2);
  Engine& sender = *world.engines[0];
  Engine& receiver = *world.engines[1];
  for (std::size_t g = 1; g <= groups; ++g) {
    world.connect(GroupId{100 + g});
    const std::shared_ptr<Ticket> last = post(sender, GroupId{100 + g});
    EXPECT_TRUE(last->wait(g == 1 ? kTestMs : kMayTakeMs) || g > 1);
    sender.close(GroupId{100 + g});
  }
  std::vector<float> in(10, 1.0F);
  std::vector<float> same(10, 1.0F);
  const auto first = sender.post(world.group, all_reduce(in));
  const auto second = receiver.post(world.group, all_reduce(same));
  expect_success(first);
  expect_success(second);
  take(receiver, GroupId{101});
  for (std::size_t g = 1; g <= groups; ++g) receiver.close(GroupId{100 + g});
  const GroupId whole{200};
  world.connect(whole);
  expect_success(post(sender, whole));
}

OpRequest broadcast(std::vector<float>& values, bool root) {
  OpRequest request;
  request.descriptor = {OpKind::broadcast, ReduceOp::none, DType::f32, 0, values.size()};
  if (root) request.inputs = {buffer(values)};
  request.outputs = {buffer(values)};
  return request;
}

TEST(Windows, collectives_that_a_closed_group_has_left_behind_count) {
  constexpr std::size_t kFloats = (60U << 20) / sizeof(float);
  std::vector<float> out(kFloats, 3.0F);
  closes_and_leaves_behind(
      5, [&](Engine& engine, GroupId group) { return engine.post(group, broadcast(out, true)); },
      [&](Engine& engine, GroupId group) {
        std::vector<float> in(kFloats);
        expect_success(engine.post(group, broadcast(in, false)));
        EXPECT_EQ(in, out);
      });
}

TEST(Windows, small_sends_that_a_closed_group_has_left_behind_count) {
  std::vector<float> out(kSmallSegmentBytesMax / sizeof(float), 3.0F);
  closes_and_leaves_behind(
      18,
      [&](Engine& engine, GroupId group) {
        std::shared_ptr<Ticket> last;
        for (std::size_t i = 0; i < kEagerSendsMax; ++i) {
          last = engine.post(group, message(OpKind::send, 1, out));
        }
        return last;
      },
      [&](Engine& engine, GroupId group) {
        std::vector<float> in(out.size());
        expect_success(engine.post(group, message(OpKind::recv, 0, in)));
        EXPECT_EQ(in, out);
      });
}

TEST(Windows, a_small_send_of_a_closed_group_gives_its_own_place_back_and_once) {
  constexpr PeerId kPeer{1};
  constexpr GroupId kClosed{2};
  Windows windows;
  windows.of(kPeer).eager_sends = 2;
  windows.left_behind(kPeer, kClosed).eager_sends = {7, 9};
  windows.received(kPeer, kClosed, 6);  // was given up while the group was open
  EXPECT_EQ(windows.of(kPeer).eager_sends, 2U);
  for (int i = 0; i < 2; ++i) windows.received(kPeer, kClosed, 7);
  EXPECT_EQ(windows.of(kPeer).eager_sends, 1U);
  ASSERT_EQ(windows.questions(kPeer).size(), 1U) << "one is still there";
  windows.granted(kPeer, Grant{kClosed, {}, kGroupClosed});
  EXPECT_EQ(windows.of(kPeer).eager_sends, 0U);
  EXPECT_TRUE(windows.questions(kPeer).empty());
}

}  // namespace
}  // namespace pccl::testing
