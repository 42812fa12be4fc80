// Operations of two or three ranks that run in one process, over a network that hands each segment
// on at once: as a whole into its place, or part by part where it lies, as in shared memory.
#include "engine/operation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "base/random.h"
#include "base/sites.h"
#include "kernels/quantise.h"

namespace pccl {
namespace {

constexpr std::uint64_t kBeyondCaches =
    (2U << 20) + 1001;  // values; more bytes than are kept in caches
constexpr std::uint64_t kSmall = 100000;
constexpr std::size_t kPart = 128U << 10;
constexpr float kBefore = -1.0F;  // in the outputs

using Values = std::vector<float>;

Buffer bytes_of(Values& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float)};
}

class Ranks {
 public:
  enum class Output : std::uint8_t { apart, over_the_input };
  Ranks(OpKind kind, std::uint32_t size, std::uint64_t count, bool in_place, bool local = false,
        Output output = Output::apart)
      : kind_(kind), size_(size), count_(count), in_place_(in_place), ports_(size) {
    lines_.local = local;
    for (std::uint32_t r = 0; r < size; ++r) add(r, output);
  }
  /// Averages as few bits, of ranks at so many sites, one behind the other; each rank keeps what
  /// codes of sums take.
  void quantise(Quantisation how, std::uint32_t sites) {
    std::vector<std::uint32_t> of_ranks(size_);
    for (std::uint32_t r = 0; r < size_; ++r) of_ranks[r] = r * sites / size_;
    lines_.sites = numbered_sites(of_ranks);
    for (std::uint32_t r = 0; r < size_; ++r) {
      OpRequest request = ops_[r]->request();
      request.descriptor.reduce = ReduceOp::avg;
      request.descriptor.quantisation = how;
      request.sum_error = sum_errors_.emplace_back(count_, kBefore).data();
      ops_[r] = std::make_unique<Operation>(pool_, OpKey{0, 0}, std::move(request),
                                            std::make_shared<Ticket>());
    }
  }
  [[nodiscard]] const std::deque<Values>& inputs() const { return inputs_; }
  [[nodiscard]] const std::deque<Values>& sum_errors() const { return sum_errors_; }

  void run() {
    start();
    while (!flying_.empty()) arrive_next();
    for (const auto& op : ops_) EXPECT_TRUE(op->complete());
  }
  /// As where a peer is lost: after so many parts of segments all stop and restore.
  void run_until(std::size_t parts) {
    parts_left_ = parts;
    start();
    while (!flying_.empty() && parts_left_ > 0) arrive_next();
    EXPECT_EQ(parts_left_, 0U);
    flying_.clear();
    for (const auto& op : ops_) op->stop();
    restore();
    parts_left_ = kAll;
  }
  void run_again() {
    for (const auto& op : ops_) op->stop();
    restore();
    run();
  }
  void restore() {
    for (const auto& op : ops_) op->restore();
  }
  [[nodiscard]] bool hold_their_inputs() const {
    return std::equal(inputs_.begin(), inputs_.end(), outputs_.begin(), outputs_.end());
  }
  [[nodiscard]] bool untouched() const {
    return std::all_of(outputs_.begin(), outputs_.end(), [](const Values& output) {
      return std::all_of(output.begin(), output.end(), [](float v) { return v == kBefore; });
    });
  }
  [[nodiscard]] const std::deque<Values>& outputs() const { return outputs_; }
  [[nodiscard]] bool through_areas() const { return ops_.front()->through_areas(); }
  [[nodiscard]] std::size_t shown_in_parts() const { return shown_in_parts_; }

 private:
  struct Port final : OperationPort {
    Ranks* owner = nullptr;
    std::uint32_t rank = 0;
    void send_segment(Operation& /*op*/, std::uint32_t to, std::uint32_t channel,
                      std::uint64_t offset, const std::byte* data, std::uint32_t bytes,
                      std::uint32_t index) override {
      SegmentHeader header;
      header.channel = channel;
      header.offset = offset;
      header.bytes = bytes;
      header.in_place = owner->in_place_;
      owner->flying_.push_back({rank, to, index, header, {data, data + bytes}});
    }
  };
  struct Flying {
    std::uint32_t from;
    std::uint32_t to;
    std::uint32_t index;
    SegmentHeader header;
    std::vector<std::byte> payload;
  };

  void start() {
    std::vector<std::uint32_t> all(size_);
    for (std::uint32_t r = 0; r < size_; ++r) all[r] = r;
    for (std::uint32_t r = 0; r < size_; ++r) {
      ports_[r].owner = this;
      ports_[r].rank = r;
      ops_[r]->start(ports_[r], all, r, /*token=*/++token_, /*keep_preimage=*/true, lines_);
    }
  }
  void arrive_next() {
    const Flying segment = std::move(flying_.front());
    flying_.pop_front();
    arrive(segment);
  }

  void add(std::uint32_t rank, Output output) {
    Random random(rank + 1);
    Values in(count_);
    for (float& value : in) value = static_cast<float>(random.below(1000));
    inputs_.push_back(std::move(in));
    const bool gathers = kind_ == OpKind::all_gather;
    if (output == Output::apart) {
      outputs_.emplace_back(count_ * (gathers ? size_ : 1), kBefore);
    } else {
      outputs_.push_back(inputs_.back());
    }
    OpRequest request;
    request.descriptor = {kind_, kind_ == OpKind::all_reduce ? ReduceOp::sum : ReduceOp::none,
                          DType::f32, kind_ == OpKind::broadcast ? 0 : -1, count_};
    request.inputs = {bytes_of(output == Output::apart ? inputs_.back() : outputs_.back())};
    if (kind_ == OpKind::broadcast && rank > 0) request.inputs.clear();
    const Buffer whole = bytes_of(outputs_.back());
    request.outputs = {whole};
    if (gathers) {
      request.outputs.clear();
      const std::uint64_t bytes = count_ * sizeof(float);
      for (std::uint32_t r = 0; r < size_; ++r) {
        request.outputs.push_back({whole.data + r * bytes, bytes});
      }
    }
    ops_.push_back(std::make_unique<Operation>(pool_, OpKey{0, 0}, std::move(request),
                                               std::make_shared<Ticket>()));
  }

  void arrive(const Flying& segment) {
    ops_[segment.from]->sent(segment.index);
    Operation& op = *ops_[segment.to];
    const auto placed = op.place(segment.from, segment.header);
    ASSERT_TRUE(placed) << placed.error().text;
    const Placement at = placed.value();
    const std::span<const std::byte> payload(segment.payload);
    if (at.in_parts) {
      ++shown_in_parts_;
      for (std::size_t done = 0; done < payload.size(); done += kPart) {
        if (parts_left_ == 0) return;
        --parts_left_;
        op.use_part(segment.from, segment.header, static_cast<std::uint32_t>(done),
                    payload.subspan(done, std::min(kPart, payload.size() - done)));
      }
    } else {
      std::memcpy(at.to, payload.data(), payload.size());
    }
    op.arrived(segment.from, segment.header, at);
  }

  OpKind kind_;
  std::uint32_t size_;
  std::uint64_t count_;
  bool in_place_;
  Lines lines_;
  BufferPool pool_{1U << 20};
  std::vector<Port> ports_;
  std::deque<Flying> flying_;
  std::deque<Values> inputs_;
  std::deque<Values> outputs_;
  std::deque<Values> sum_errors_;
  std::vector<std::unique_ptr<Operation>> ops_;
  MemoryToken token_ = 0;
  std::size_t shown_in_parts_ = 0;
  static constexpr std::size_t kAll = ~std::size_t{0};
  std::size_t parts_left_ = kAll;
};

TEST(Operation, gives_the_same_bits_in_parts_and_restores_what_it_has_written) {
  for (const OpKind kind : {OpKind::all_reduce, OpKind::all_gather, OpKind::broadcast}) {
    for (const std::uint64_t count : {kSmall, kBeyondCaches}) {
      for (const std::uint32_t size : {2U, 3U}) {
        Ranks whole(kind, size, count, /*in_place=*/false);
        Ranks in_parts(kind, size, count, /*in_place=*/true);
        whole.run();
        in_parts.run();
        EXPECT_EQ(whole.outputs(), in_parts.outputs()) << kind_name(kind) << size << " " << count;
        EXPECT_EQ(whole.shown_in_parts(), 0U);
        in_parts.restore();
        EXPECT_TRUE(in_parts.untouched());
      }
    }
  }
}

TEST(Operation, that_stops_within_a_segment_undoes_its_parts_and_is_right_in_its_next_run) {
  for (const OpKind kind : {OpKind::all_reduce, OpKind::all_gather, OpKind::broadcast}) {
    Ranks whole(kind, 3, kBeyondCaches, /*in_place=*/false);
    whole.run();
    for (const std::size_t parts : {1U, 3U, 8U, 9U, 60U}) {
      Ranks lost(kind, 3, kBeyondCaches, /*in_place=*/true);
      lost.run_until(parts);
      EXPECT_TRUE(lost.untouched()) << kind_name(kind) << " " << parts;
      lost.run();
      EXPECT_EQ(lost.outputs(), whole.outputs()) << kind_name(kind) << " " << parts;
    }
  }
}

TEST(Operation, through_areas_gives_the_input_back_from_wherever_it_stops) {
  constexpr std::uint64_t kCount = 3U << 20;
  Ranks apart(OpKind::all_reduce, 3, kCount, /*in_place=*/true, /*local=*/true);
  apart.run();
  for (const std::size_t parts : {1U, 5U, 20U, 100U}) {
    Ranks lost(OpKind::all_reduce, 3, kCount, /*in_place=*/true, /*local=*/true,
               Ranks::Output::over_the_input);
    lost.run_until(parts);
    EXPECT_TRUE(lost.hold_their_inputs()) << parts;
    lost.run();
    EXPECT_TRUE(lost.through_areas());
    EXPECT_EQ(lost.outputs(), apart.outputs()) << parts;
    lost.restore();
    EXPECT_TRUE(lost.hold_their_inputs()) << parts;
  }
}

/// In what all ranks have kept is all that the result lacks of the average of what they have sent.
void expect_all_errors_kept(const Ranks& ranks, Quantisation how) {
  const std::size_t count = ranks.inputs().front().size();
  std::vector<double> missing(count);
  Values sent(count);
  std::vector<std::byte> codes(quantised_bytes(count, how));
  const auto size = static_cast<double>(ranks.inputs().size());
  for (const Values& in : ranks.inputs()) {
    quantise(codes.data(), in.data(), count, how);
    dequantise(sent.data(), codes.data(), count, how);
    for (std::size_t i = 0; i < count; ++i) missing[i] += sent[i] / size;
  }
  for (std::size_t i = 0; i < count; ++i) missing[i] -= ranks.outputs().front()[i];
  double taken = 0;
  for (const Values& error : ranks.sum_errors()) {
    double own = 0;
    for (std::size_t i = 0; i < count; ++i) {
      missing[i] -= error[i];
      own += std::abs(error[i]);
    }
    EXPECT_GT(own, 0) << "each rank makes codes of sums";
    taken += own / static_cast<double>(count);
  }
  EXPECT_GT(taken, 0.1) << "something is rounded";
  const auto [least, most] = std::minmax_element(missing.begin(), missing.end());
  EXPECT_LT(std::max(-*least, *most), 2e-3) << taken;
}

TEST(Operation, that_averages_quantised_values_keeps_what_the_codes_of_sums_take) {
  for (const Quantisation how : {Quantisation::int8_minmax, Quantisation::int4_minmax}) {
    for (const std::uint32_t sites : {1U, 2U, 3U}) {
      Ranks ranks(OpKind::all_reduce, 6, kSmall, /*in_place=*/false);
      ranks.quantise(how, sites);
      ranks.run();
      expect_all_errors_kept(ranks, how);
      ranks.run_again();
      expect_all_errors_kept(ranks, how);
    }
  }
}

TEST(Operation, copies_a_small_output_through_the_caches_and_a_large_one_around_them) {
  Ranks small(OpKind::broadcast, 2, kSmall, /*in_place=*/true);
  Ranks large(OpKind::broadcast, 2, kBeyondCaches, /*in_place=*/true);
  small.run();
  large.run();
  EXPECT_EQ(small.shown_in_parts(), 0U);
  EXPECT_GT(large.shown_in_parts(), 0U);
}

TEST(Operation, copies_an_input_that_lies_across_its_output) {
  BufferPool pool(1U << 20);
  Values memory(kBeyondCaches + 10);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i % 997);
  const Values before = memory;
  const Buffer all = bytes_of(memory);
  constexpr std::uint64_t kShift = 10 * sizeof(float);
  OpRequest request;
  request.descriptor = {OpKind::all_reduce, ReduceOp::sum, DType::f32, -1, kBeyondCaches};
  request.inputs = {{all.data + kShift, all.bytes - kShift}};
  request.outputs = {{all.data, all.bytes - kShift}};
  struct Alone final : OperationPort {
    void send_segment(Operation& /*op*/, std::uint32_t /*to*/, std::uint32_t /*channel*/,
                      std::uint64_t /*offset*/, const std::byte* /*data*/, std::uint32_t /*bytes*/,
                      std::uint32_t /*index*/) override {
      FAIL();
    }
  } port;
  Operation op(pool, OpKey{0, 0}, std::move(request), std::make_shared<Ticket>());
  op.start(port, {0}, 0, 1, /*keep_preimage=*/false);
  ASSERT_TRUE(op.complete());
  EXPECT_TRUE(std::equal(before.begin() + 10, before.end(), memory.begin()));
}

}  // namespace
}  // namespace pccl
