// What a group says of an operation that takes long, and of peers: names, progress, one line for
// one loss.
#include "base/log.h"
#include "engines.h"
#include "fake_links.h"

namespace pccl::testing {
namespace {

constexpr PeerId kRank0{10};
constexpr PeerId kRank1{20};
constexpr std::size_t kThreeSegments = 3U << 18;  // three segments

class GroupTexts : public ::testing::Test {
 protected:
  GroupTexts() {
    set_log_sink([this](LogLevel, std::string_view line) { lines.emplace_back(line); });
    for (Node* node : {&a, &b}) {
      node->context.call(Handle{kRank0, {}, {}, "node7/4711"});
      node->group->number({kRank0, kRank1});
      node->group->start(EpochId::make(1, 1), {kRank0, kRank1});
    }
  }
  ~GroupTexts() override { set_log_sink(nullptr); }

  OpRequest broadcast(std::vector<float>& values) {
    OpRequest request;
    request.descriptor = {OpKind::broadcast, ReduceOp::none, DType::f32, 0, values.size()};
    request.inputs = {buffer(values)};
    request.outputs = {buffer(values)};
    request.numbering = b.group->numbering();
    return request;
  }

  std::vector<std::string> lines;
  std::vector<float> from = std::vector<float>(kThreeSegments, 1.0F);  // outlive the groups,
  std::vector<float> to = std::vector<float>(kThreeSegments);  // which restore what they hold
  Node a{kRank0};
  Node b{kRank1};
};

TEST_F(GroupTexts, say_what_is_done_of_how_much_and_how_fast_while_data_move) {
  a.post(broadcast(from));
  b.post(broadcast(to));
  b.group->tick(kSayWaitingMs);
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines.back().find("has been waiting for 5 s for data from rank 0 (node7/4711)"),
            std::string::npos)
      << lines.back();
  const auto segment =
      std::find_if(a.links.sent.begin(), a.links.sent.end(),
                   [](const FakeLinks::Sent& sent) { return sent.control.empty(); });
  ASSERT_NE(segment, a.links.sent.end());
  b.gets(kRank0, segment->header, segment->payload);
  b.group->tick(kSayWaitingMs);
  EXPECT_NE(lines.back().find("moves, after 10 s: 1.0 MB of 3.1 MB received, 209.7 kB/s; the rest "
                              "comes from rank 0 (node7/4711)"),
            std::string::npos)
      << lines.back();
  b.group->tick(2 * kSayWaitingMs);
  EXPECT_NE(lines.back().find("has been waiting for 20 s for data from rank 0 (node7/4711) (1.0 MB "
                              "of 3.1 MB received)"),
            std::string::npos)
      << lines.back();
}

TEST_F(GroupTexts, say_that_bytes_come_before_a_segment_is_whole) {
  b.links.came = 1000;  // of other operations, before
  b.post(broadcast(to));
  b.links.came += 500'000;
  b.group->tick(kSayWaitingMs);
  EXPECT_NE(lines.back().find("for data from rank 0 (node7/4711); data come, 100.0 kB/s over all "
                              "links, and no segment is whole yet"),
            std::string::npos)
      << lines.back();
  b.group->tick(kSayWaitingMs);
  EXPECT_EQ(lines.back().find("data come"), std::string::npos) << lines.back();
}

TEST_F(GroupTexts, name_the_rate_of_the_own_process_where_it_is_the_limit) {
  a.options.links.max_rate = 2'000'000;
  a.links.held_ms = 60'000;  // before
  a.post(broadcast(from));
  a.links.held_ms += 4000;
  a.group->tick(kSayWaitingMs);
  const std::string held = "; this member's sending is held by PCCL_MAX_RATE (2.0 MB/s)";
  EXPECT_NE(lines.back().find(" to send its part (0 bytes of 3.1 MB sent)" + held),
            std::string::npos)
      << lines.back();
  a.links.held_ms += 1000;
  a.group->tick(kSayWaitingMs);
  EXPECT_EQ(lines.back().find("PCCL_MAX_RATE"), std::string::npos) << lines.back();
  b.options.links.max_rate = 2'000'000;
  b.post(broadcast(to));
  b.links.held_ms = 5000;
  b.group->tick(kSayWaitingMs);
  EXPECT_NE(lines.back().find("for data from rank 0 (node7/4711)" + held), std::string::npos)
      << lines.back();
}

TEST_F(GroupTexts, name_the_ranks_that_have_not_called_it_yet) {
  b.post(broadcast(to));
  b.group->late_ones = {kRank0};
  b.group->tick(kSayWaitingMs);
  EXPECT_NE(lines.back().find("for data from rank 0 (node7/4711); rank 0 (node7/4711) has not "
                              "called it yet"),
            std::string::npos)
      << lines.back();
  b.group->late_ones = {kRank0, kRank1};
  b.group->tick(kSayWaitingMs);
  EXPECT_TRUE(lines.back().ends_with(") have not called it yet")) << lines.back();
}

TEST_F(GroupTexts, name_the_ranks_that_have_gone_on_to_a_later_step) {
  b.post(broadcast(to));
  b.group->past_ones = {kRank0};
  b.group->tick(kSayWaitingMs);
  EXPECT_TRUE(
      lines.back().ends_with("for data from rank 0 (node7/4711); rank 0 (node7/4711) has "
                             "gone on to a later step, with this call or without it"))
      << lines.back();
}

TEST_F(GroupTexts, a_loss_that_several_groups_have_is_news_once) {
  EXPECT_TRUE(a.context.is_news(PeerId{}));  // by another member's word, which names nobody
  EXPECT_FALSE(a.context.is_news(kRank1));
  EXPECT_FALSE(a.context.is_news(kRank1));
  EXPECT_FALSE(a.context.is_news(PeerId{}));
  EXPECT_TRUE(a.context.is_news(PeerId{30})) << "another peer";
}

TEST_F(GroupTexts, of_hundreds_of_operations_that_wait_three_have_a_line_and_the_rest_one) {
  std::vector<std::vector<float>> values(200, std::vector<float>(8));
  for (auto& one : values) b.post(broadcast(one));
  lines.clear();
  b.group->tick(kSayWaitingMs);
  const auto waiting = std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("waiting for") != std::string::npos;
  });
  EXPECT_EQ(waiting, 4);
  EXPECT_NE(lines.back().find("more operations have been waiting for as long (197), the newest of "
                              "them broadcast(float32, 8 elements, root 0) #0.199"),
            std::string::npos)
      << lines.back();
}

TEST_F(GroupTexts, of_operations_that_are_called_one_after_the_other_a_few_have_a_line_in_5_s) {
  std::vector<std::vector<float>> values(190, std::vector<float>(8));
  lines.clear();
  for (auto& one : values) {  // 9.5 s
    b.post(broadcast(one));
    b.group->tick(50);
  }
  const auto waiting = [this](const char* what) {
    return std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
      return line.find(what) != std::string::npos;
    });
  };
  EXPECT_EQ(waiting("has been waiting for 5 s"), kSaidAtOnceMax);
  EXPECT_EQ(waiting("more operations"), 0);
  for (std::uint64_t ms = 0; ms < kSayWaitingMs / 2; ms += 50) b.group->tick(50);
  EXPECT_EQ(waiting("more operations have been waiting for as long ("), 1);
}

}  // namespace
}  // namespace pccl::testing
