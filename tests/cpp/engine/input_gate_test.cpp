// Operations whose inputs come piece by piece, as copies from a device do: they send what is there,
// complete when all is, and fail like others.
#include <algorithm>

#include "engines.h"

namespace pccl::testing {
namespace {

/// Memory that somebody else fills; what has not come yet is garbage.
class Filled {
 public:
  explicit Filled(std::vector<float> values)
      : memory(values.size(), -1e30F),
        gate(std::make_shared<InputGate>()),
        values_(std::move(values)) {}

  /// The first `count` values are there now.
  void come(std::size_t count) {
    std::copy(values_.begin() + came_, values_.begin() + static_cast<std::ptrdiff_t>(count),
              memory.begin() + came_);
    came_ = static_cast<std::ptrdiff_t>(count);
    gate->bytes.store(count * sizeof(float), std::memory_order_release);
  }
  void come(Engine& engine, GroupId group, std::size_t count) {
    come(count);
    engine.inputs_came(group, gate);
  }
  [[nodiscard]] std::size_t size() const { return values_.size(); }

  std::vector<float> memory;
  std::shared_ptr<InputGate> gate;

 private:
  std::vector<float> values_;
  std::ptrdiff_t came_ = 0;  // what has come may have been overwritten by results
};

std::vector<float> counted(std::size_t count, float first) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i % 1000);
  return values;
}

OpRequest gated_all_reduce(Filled& filled) {
  OpRequest request = all_reduce(filled.memory);
  request.gate = filled.gate;
  return request;
}

/// Comes in `pieces`, and the outcome not before the last one.
void come_in_pieces(Engine& engine, GroupId group, Filled& filled, std::size_t pieces,
                    const std::shared_ptr<Ticket>& ticket) {
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    filled.come(engine, group, filled.size() * piece / pieces);
    EXPECT_FALSE(ticket->wait(20)) << piece;
  }
  filled.come(engine, group, filled.size());
}

TEST(InputGate, all_reduce_in_place_waits_for_the_last_piece_and_is_right) {
  FixedWorld world(3);
  for (const std::size_t count : {1U, 1000U, 100000U, 3000001U}) {
    std::vector<Filled> filled;
    std::vector<std::shared_ptr<Ticket>> tickets;
    for (std::size_t r = 0; r < 3; ++r) filled.emplace_back(counted(count, static_cast<float>(r)));
    filled[0].come(count);
    for (std::size_t r = 0; r < 3; ++r) {
      tickets.push_back(world.engines[r]->post(world.group, gated_all_reduce(filled[r])));
    }
    come_in_pieces(*world.engines[1], world.group, filled[1], 3, tickets[1]);
    come_in_pieces(*world.engines[2], world.group, filled[2], 4, tickets[2]);
    for (const auto& ticket : tickets) expect_success(ticket);
    for (std::size_t r = 0; r < 3; ++r) {
      ASSERT_EQ(filled[r].memory, filled[0].memory) << count;
      for (std::size_t i = 0; i < count; i += 1 + count / 50) {
        ASSERT_EQ(filled[r].memory[i], static_cast<float>(3 + 3 * (i % 1000))) << count << " " << i;
      }
    }
  }
}

TEST(InputGate, of_several_inputs_each_may_leave_when_it_is_there) {
  FixedWorld world(3);
  for (const std::size_t part : {100U, 400000U}) {  // small and large: two algorithms
    std::vector<Filled> filled;
    std::vector<std::vector<float>> outputs(3, std::vector<float>(part));
    std::vector<std::shared_ptr<Ticket>> tickets;
    for (std::size_t r = 0; r < 3; ++r)
      filled.emplace_back(counted(3 * part, static_cast<float>(r)));
    for (std::size_t r = 0; r < 3; ++r) {
      OpRequest request;
      request.descriptor = {OpKind::reduce_scatter, ReduceOp::sum, DType::f32, -1, part};
      for (std::size_t to = 0; to < 3; ++to) {
        const Buffer all = buffer(filled[r].memory);
        request.inputs.push_back({all.data + to * all.bytes / 3, all.bytes / 3});
      }
      request.outputs = {buffer(outputs[r])};
      request.gate = filled[r].gate;
      tickets.push_back(world.engines[r]->post(world.group, std::move(request)));
    }
    for (const std::size_t r : {2U, 0U, 1U}) {
      come_in_pieces(*world.engines[r], world.group, filled[r], 5, tickets[r]);
    }
    for (const auto& ticket : tickets) expect_success(ticket);
    for (std::size_t r = 0; r < 3; ++r) {
      for (std::size_t i = 0; i < part; i += 1 + part / 50) {
        const auto place = static_cast<float>((r * part + i) % 1000);
        ASSERT_EQ(outputs[r][i], 3 + 3 * place) << part << " " << r << " " << i;
      }
    }
  }
}

TEST(InputGate, broadcast_and_reduce_along_a_chain_wait_for_the_root_and_for_the_others) {
  FixedWorld world(3);
  const std::size_t count = 2000000;
  Filled source(counted(count, 5));
  std::vector<std::vector<float>> targets(2, std::vector<float>(count));
  std::vector<std::shared_ptr<Ticket>> tickets;
  OpRequest root;
  root.descriptor = {OpKind::broadcast, ReduceOp::none, DType::f32, 0, count};
  root.inputs = root.outputs = {buffer(source.memory)};
  root.gate = source.gate;
  tickets.push_back(world.engines[0]->post(world.group, std::move(root)));
  for (const std::size_t r : {1U, 2U}) {
    OpRequest request;
    request.descriptor = {OpKind::broadcast, ReduceOp::none, DType::f32, 0, count};
    request.outputs = {buffer(targets[r - 1])};
    request.gate = std::make_shared<InputGate>();  // no inputs: nothing to wait for
    tickets.push_back(world.engines[r]->post(world.group, std::move(request)));
  }
  come_in_pieces(*world.engines[0], world.group, source, 3, tickets[2]);
  for (const auto& ticket : tickets) expect_success(ticket);
  EXPECT_EQ(targets[0], source.memory);
  EXPECT_EQ(targets[1], source.memory);

  std::vector<Filled> filled;
  tickets.clear();
  for (std::size_t r = 0; r < 3; ++r) filled.emplace_back(counted(count, static_cast<float>(r)));
  for (std::size_t r = 0; r < 3; ++r) {
    OpRequest request;
    request.descriptor = {OpKind::reduce, ReduceOp::sum, DType::f32, 0, count};
    request.inputs = {buffer(filled[r].memory)};
    if (r == 0) request.outputs = request.inputs;
    request.gate = filled[r].gate;
    tickets.push_back(world.engines[r]->post(world.group, std::move(request)));
  }
  for (const std::size_t r : {2U, 1U, 0U}) {
    come_in_pieces(*world.engines[r], world.group, filled[r], 4, tickets[0]);
  }
  for (const auto& ticket : tickets) expect_success(ticket);
  for (std::size_t i = 0; i < count; i += 9973) {
    ASSERT_EQ(filled[0].memory[i], static_cast<float>(3 + 3 * (i % 1000))) << i;
  }
}

TEST(InputGate, a_send_whose_data_come_late_is_received_before_a_later_one) {
  FixedWorld world(2);
  for (const std::size_t count : {3U, 1U << 21}) {
    Filled late(counted(count, 1));
    std::vector<float> next = counted(count, 7);
    std::vector<float> first_in(count);
    std::vector<float> second_in(count);
    OpRequest send = message(OpKind::send, 1, late.memory);
    send.gate = late.gate;
    std::vector<std::shared_ptr<Ticket>> tickets;
    tickets.push_back(world.engines[0]->post(world.group, std::move(send)));
    tickets.push_back(world.engines[0]->post(world.group, message(OpKind::send, 1, next)));
    tickets.push_back(world.engines[1]->post(world.group, message(OpKind::recv, 0, first_in)));
    tickets.push_back(world.engines[1]->post(world.group, message(OpKind::recv, 0, second_in)));
    come_in_pieces(*world.engines[0], world.group, late, 3, tickets[2]);
    for (const auto& ticket : tickets) expect_success(ticket);
    EXPECT_EQ(first_in, late.memory);
    EXPECT_EQ(second_in, next);
  }
}

TEST(InputGate, a_time_out_names_the_rank_whose_device_is_late) {
  FixedWorld world(2);
  Filled shut(counted(100, 0));
  std::vector<float> other(100, 1.0F);
  OpRequest request = gated_all_reduce(shut);
  request.timeout_ms = 200;
  const auto late = world.engines[0]->post(world.group, std::move(request));
  const auto waiting = world.engines[1]->post(world.group, all_reduce(other));
  for (const auto& ticket : {late, waiting}) {
    const Error error = outcome(ticket);
    EXPECT_EQ(error.code, ErrorCode::timed_out) << error.text;
    EXPECT_NE(error.text.find("the device of rank 0"), std::string::npos) << error.text;
  }
  shut.come(*world.engines[0], world.group, 100);  // too late, and no harm
}

TEST(InputGate, inputs_that_never_come_end_with_an_abort_at_all_ranks) {
  FixedWorld world(2);
  Filled shut(counted(100000, 0));
  std::vector<float> other(100000, 1.0F);
  const auto here = world.engines[0]->post(world.group, gated_all_reduce(shut));
  const auto there = world.engines[1]->post(world.group, all_reduce(other));
  shut.come(*world.engines[0], world.group, 50000);
  world.engines[0]->abort(world.group, "the copy has failed");
  for (const auto& ticket : {here, there}) {
    const Error error = outcome(ticket);
    EXPECT_NE(error.text.find("the copy has failed"), std::string::npos) << error.text;
  }
}

}  // namespace
}  // namespace pccl::testing
