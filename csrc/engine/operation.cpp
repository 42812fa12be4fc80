#include "engine/operation.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/assert.h"
#include "kernels/quantise.h"
#include "kernels/reduce.h"

namespace pccl {
namespace {

constexpr std::uint64_t kNoCookie = 0;  // the payload goes straight to where it belongs
constexpr std::uint64_t kStreamedOutputBytesMin = 8U << 20;
constexpr std::size_t kSpreadBytes = 64U << 10;  // worth to hand over to another thread
// More than two operands are added in blocks of so many bytes.
constexpr std::size_t kAddedBlockBytes = 8U << 10;

std::uint64_t receive_key(std::uint32_t from, std::uint32_t channel) {
  return (static_cast<std::uint64_t>(from) << 32) | channel;
}
bool receives(const Step& step) { return receives(step.kind); }

}  // namespace

Operation::Operation(BufferPool& pool, OpKey key, OpRequest request, std::shared_ptr<Ticket> ticket)
    : pool_(pool), key_(key), request_(std::move(request)), ticket_(std::move(ticket)) {
  if (!request_.gate) return;
  std::uint64_t begin = 0;
  for (const Buffer& b : request_.inputs) {
    input_begins_.push_back(begin);
    begin += b.bytes;
  }
}

void Operation::start(OperationPort& port, std::vector<std::uint32_t> contributors,
                      std::uint32_t me, MemoryToken token, bool keep_preimage, const Lines& lines) {
  PCCL_ASSERT(!running());
  port_ = &port;
  contributors_ = std::move(contributors);
  me_ = me;
  lines_ = lines;
  token_ = token;
  bytes_sent_ = 0;
  bytes_received_ = 0;
  schedule_ = build_schedule(arguments());
  algorithm_ = schedule_.algorithm;
  if (schedule_.scratch_bytes > 0) scratch_ = pool_.take(schedule_.scratch_bytes);
  if (const std::uint32_t slots = schedule_.area_rows * schedule_.area_depth; slots > 0) {
    area_ = port.take_area(slots);
    if (!area_) no_area_ = pool_.take(std::size_t{slots} * kAreaSlotBytes);
  }
  if (keep_preimage && !preimage_) preimage_.emplace(pool_, request_.outputs);
  if (request_.sum_error != nullptr) {
    std::fill_n(request_.sum_error, output_bytes() / sizeof(float), 0.0F);
  }

  const auto count = static_cast<std::uint32_t>(schedule_.steps.size());
  states_ = std::vector<StepState>(count);
  steps_left_ = count;
  for (std::uint32_t s = 0; s < count; ++s) {
    const Step& step = schedule_.steps[s];
    StepState& state = states_[s];
    state.segments =
        codes(step.kind)
            ? 1
            : static_cast<std::uint32_t>(segments_of(length(step), schedule_.segment_bytes));
    state.done.assign(state.segments, false);
    if (receives(step)) state.taken.assign(state.segments, false);
    state.triggered.assign(state.segments, false);
    state.after_left = static_cast<std::uint32_t>(step.after.size());
    for (const std::uint32_t earlier : step.after) states_[earlier].dependents.push_back(s);
    if (step.follows >= 0) {
      states_[static_cast<std::uint32_t>(step.follows)].followers.push_back(s);
    }
    for (const Behind& b : step.behind) states_[b.step].waiters.push_back({s, b.segments});
    if (receives(step)) receives_[receive_key(step.peer, step.channel)] = s;
  }
  for (std::uint32_t s = 0; s < count; ++s) {
    if (receives(schedule_.steps[s])) continue;
    for (std::uint32_t segment = 0; segment < states_[s].segments; ++segment) trigger(s, segment);
  }
  drain();
}

void Operation::stop() {
  port_ = nullptr;
  token_ = 0;
  states_.clear();
  receives_.clear();
  incoming_.clear();
  sends_.clear();
  work_.clear();
  leaving_.clear();
  draining_ = false;  // also where the memory ran out in the middle of it
  schedule_ = {};
  scratch_.release();
  area_.reset();
  no_area_.release();
}

void Operation::restore() {
  if (preimage_) preimage_->restore();
}

CollectiveArgs Operation::arguments() const {
  CollectiveArgs args;
  const OpDescriptor& d = request_.descriptor;
  args.kind = d.kind;
  args.reduce = d.reduce;
  args.rank = me_;
  args.size = static_cast<std::uint32_t>(contributors_.size());
  args.element_bytes = dtype_bytes(d.dtype);
  args.quantisation = d.quantisation;
  args.lines = lines_;
  if (d.root >= 0) {
    const auto at =
        std::find(contributors_.begin(), contributors_.end(), static_cast<std::uint32_t>(d.root));
    PCCL_ASSERT(at != contributors_.end(), d.root);
    args.root = static_cast<std::uint32_t>(at - contributors_.begin());
  }
  const auto sizes = [&](const std::vector<Buffer>& buffers, bool per_rank) {
    std::vector<std::uint64_t> bytes;
    if (per_rank && !buffers.empty()) {
      for (const std::uint32_t c : contributors_) bytes.push_back(buffers[c].bytes);
    } else {
      for (const Buffer& b : buffers) bytes.push_back(b.bytes);
    }
    return bytes;
  };
  args.input_bytes = sizes(request_.inputs, input_per_rank(d.kind));
  args.output_bytes = sizes(request_.outputs, output_per_rank(d.kind));
  return args;
}

std::uint32_t Operation::output_index(const Range& range) const {
  return output_per_rank(request_.descriptor.kind) ? contributors_[range.index] : range.index;
}

std::uint32_t Operation::input_index(const Range& range) const {
  return input_per_rank(request_.descriptor.kind) ? contributors_[range.index] : range.index;
}

std::byte* Operation::memory(const Range& range) const {
  switch (range.space) {
    case Space::input:
      return request_.inputs[input_index(range)].data + range.offset;
    case Space::output:
      return request_.outputs[output_index(range)].data + range.offset;
    case Space::scratch:
      return scratch_.data() + range.offset;
    case Space::area: {
      const std::uint64_t slot = std::uint64_t{range.index} * schedule_.area_depth;
      return (area_ ? area_->data() : no_area_.data()) + slot * kAreaSlotBytes;
    }
  }
  return nullptr;
}

/// Byte `offset` of a range, whose segments use its slots in turn if it lies in the area.
std::byte* Operation::at(const Range& range, std::uint64_t offset) const {
  if (range.space != Space::area) return memory(range) + offset;
  const std::uint64_t whole = schedule_.segment_bytes;
  const std::uint64_t slot = offset / whole % schedule_.area_depth;
  return memory(range) + slot * kAreaSlotBytes + offset % whole;
}

std::uint64_t Operation::length(const Step& step) const {
  return step.kind == StepKind::send ? step.from.bytes : step.to.bytes;
}

std::uint32_t Operation::segment_bytes(const Step& step, std::uint32_t segment) const {
  return bytes_of_segment(length(step), segment, schedule_.segment_bytes);
}

bool Operation::eligible(std::uint32_t s, std::uint32_t segment) const {
  if (states_[s].after_left > 0) return false;
  const Step& step = schedule_.steps[s];
  const bool follows =
      step.follows < 0 || states_[static_cast<std::uint32_t>(step.follows)].done[segment];
  for (const Behind& b : step.behind) {
    if (segment >= b.segments && !states_[b.step].done[segment - b.segments]) return false;
  }
  return follows && (!request_.gate || input_is_there(step, segment));
}

/// Every byte that a step writes is made of bytes that were read before, also where input and
/// output are one memory: so only steps that read have to wait for the gate.
bool Operation::input_is_there(const Step& step, std::uint32_t segment) const {
  if (!reads(step.kind) || step.from.space != Space::input) return true;
  const std::uint64_t bytes = codes(step.kind) ? step.from.bytes : segment_bytes(step, segment);
  const std::uint64_t end =
      input_begins_[input_index(step.from)] + step.from.offset + offset_of(segment) + bytes;
  return bytes == 0 || end <= request_.gate->bytes.load(std::memory_order_acquire);
}

// ------------------------------------------------------------------------------------ what arrives

/// The receive that the segment belongs to, which has it from now on: a second one is refused.
Result<std::uint32_t> Operation::take_receive(std::uint32_t from, const SegmentHeader& header) {
  const auto it = receives_.find(receive_key(from, header.channel));
  if (it == receives_.end()) {
    return {ErrorCode::mismatch, "a segment that this rank does not expect"};
  }
  const std::uint64_t bytes = length(schedule_.steps[it->second]);
  const auto segment = segment_at(bytes, header.offset, header.bytes, schedule_.segment_bytes);
  if (!segment) {
    return {ErrorCode::mismatch, "sizes differ: " + std::to_string(header.bytes) + " bytes at " +
                                     std::to_string(header.offset) +
                                     " arrived, this rank expects " + std::to_string(bytes) +
                                     " bytes in all"};
  }
  std::vector<bool>& taken = states_[it->second].taken;
  if (taken[static_cast<std::size_t>(*segment)]) {
    return {ErrorCode::malformed, "a segment came twice: " + std::to_string(header.bytes) +
                                      " bytes at " + std::to_string(header.offset)};
  }
  taken[static_cast<std::size_t>(*segment)] = true;
  return it->second;
}

Result<Placement> Operation::place(std::uint32_t from, const SegmentHeader& header) {
  auto found = take_receive(from, header);
  if (!found) return found.error();
  const std::uint32_t s = found.value();
  const Step& step = schedule_.steps[s];
  const auto segment = segment_of(header);
  const bool lends = header.area.generation != 0;
  if (lends && step.kind == StepKind::borrow) {
    return Placement{nullptr, token_, kNoCookie, /*in_parts=*/false, /*lends=*/true};
  }
  if (header.bytes > 0 && eligible(s, segment) && step.kind != StepKind::borrow) {
    if (header.in_place && (step.kind == StepKind::recv_reduce || streams(step.to))) {
      return Placement{nullptr, token_, kNoCookie, /*in_parts=*/true};
    }
    if (step.kind == StepKind::recv) {
      about_to_write(step.to, header.offset, header.bytes);
      return Placement{at(step.to, header.offset), token_, kNoCookie};
    }
  }
  PoolBuffer buffer = pool_.take(header.bytes);
  const Placement at{buffer.data(), token_, next_cookie_++};
  incoming_.emplace(at.cookie, std::move(buffer));
  return at;
}

void Operation::use_part(std::uint32_t from, const SegmentHeader& header, std::uint32_t offset,
                         std::span<const std::byte> bytes) {
  const Step& step = schedule_.steps[receives_.at(receive_key(from, header.channel))];
  const auto size = static_cast<std::uint32_t>(bytes.size());
  if (step.kind == StepKind::recv) {
    write_range(step, header.offset + offset, size, bytes.data());
  } else {
    reduce_range(step, header.offset + offset, size, bytes.data());
  }
}

void Operation::arrived(std::uint32_t from, const SegmentHeader& header, const Placement& at) {
  const auto segment = segment_of(header);
  const std::uint32_t s = receives_.at(receive_key(from, header.channel));
  bytes_received_ += header.bytes;
  if (at.lends) {
    borrowed(s, segment, {at.lender, header.area, {}});
    return drain();
  }
  if (at.cookie == kNoCookie) {
    mark_done(s, segment);
    drain();
    return;
  }
  auto node = incoming_.extract(at.cookie);
  PCCL_ASSERT(!node.empty(), at.cookie);  // place() has put it there, and a lane tells of it once
  use_or_hold(s, segment, std::move(node.mapped()));
}

Error Operation::deliver(std::uint32_t from, const SegmentHeader& header, PoolBuffer payload) {
  auto found = take_receive(from, header);
  if (!found) return found.error();
  bytes_received_ += header.bytes;
  use_or_hold(found.value(), segment_of(header), std::move(payload));
  return {};
}

void Operation::use_or_hold(std::uint32_t s, std::uint32_t segment, PoolBuffer payload) {
  if (schedule_.steps[s].kind == StepKind::borrow) {
    borrowed(s, segment, {nullptr, {}, std::move(payload)});
    drain();
  } else if (eligible(s, segment)) {
    use_received(s, segment, payload.data());
    drain();
  } else {
    states_[s].held.emplace(segment, std::move(payload));
  }
}

void Operation::use_received(std::uint32_t s, std::uint32_t segment, const std::byte* payload) {
  const Step& step = schedule_.steps[s];
  if (step.kind == StepKind::recv_reduce) {
    reduce_segment(step, segment, payload);
  } else if (const std::uint32_t bytes = segment_bytes(step, segment); bytes > 0) {
    write_range(step, offset_of(segment), bytes, payload);
  }
  mark_done(s, segment);
}

/// A borrowed segment waits for nothing but the others of its sum.
void Operation::borrowed(std::uint32_t s, std::uint32_t segment, Borrowed what) {
  states_[s].borrowed.emplace(segment, std::move(what));
  mark_done(s, segment);
}

void Operation::inputs_came() {
  if (!running()) return;
  for (std::uint32_t s = 0; s < states_.size(); ++s) {
    const Step& step = schedule_.steps[s];
    if (step.from.space != Space::input) continue;
    // Those that were there before wait for nothing but other steps, which trigger them.
    std::uint32_t& there = states_[s].inputs_there;
    for (; there < states_[s].segments && input_is_there(step, there); ++there) {
      if (!states_[s].done[there]) trigger(s, there);
    }
  }
  drain();
}

// ------------------------------------------------------------------------------------------- steps

/// Puts a segment of a step into the queue of work, once: a local or sending step that may handle
/// the segment now, or a receiving step whose data has arrived.
void Operation::trigger(std::uint32_t s, std::uint32_t segment) {
  StepState& state = states_[s];
  if (!eligible(s, segment) || state.triggered[segment]) return;
  if (receives(schedule_.steps[s]) && !state.held.contains(segment)) return;
  state.triggered[segment] = true;
  auto& queue = schedule_.steps[s].kind == StepKind::send ? leaving_ : work_;
  queue.push_back({s, segment});
}

void Operation::handle(std::uint32_t s, std::uint32_t segment) {
  const Step& step = schedule_.steps[s];
  const std::uint64_t offset = offset_of(segment);
  const std::uint32_t bytes = segment_bytes(step, segment);
  switch (step.kind) {
    case StepKind::send:
      sends_.push_back({s, segment});
      port_->send_segment(*this, step.peer, step.channel, offset,
                          bytes > 0 ? at(step.from, offset) : nullptr, bytes,
                          static_cast<std::uint32_t>(sends_.size() - 1));
      return;
    case StepKind::recv:
    case StepKind::recv_reduce: {
      auto node = states_[s].held.extract(segment);
      use_received(s, segment, node.mapped().data());
      return;
    }
    case StepKind::borrow:
      PCCL_ASSERT(false, "borrowed at once");
      return;
    case StepKind::add_borrowed:
      if (!add_borrowed(step, segment)) return;
      break;
    case StepKind::copy:
      if (bytes > 0 && at(step.to, offset) != at(step.from, offset)) {
        if (step.to.space == Space::area) about_to_publish(step.from, offset, bytes);
        write_range(step, offset, bytes, at(step.from, offset));
      }
      break;
    case StepKind::reduce:
      if (bytes > 0) reduce_segment(step, segment, at(step.to, offset));
      break;
    case StepKind::quantise:
    case StepKind::dequantise:
    case StepKind::add_dequantised:
      code(step);
      break;
  }
  mark_done(s, segment);
}

/// Computes to = other op from, or to = from op other: `other` is the received data, or `to`
/// itself.
void Operation::reduce_segment(const Step& step, std::uint32_t segment, const std::byte* other) {
  const std::uint64_t offset = offset_of(segment);
  const std::uint32_t bytes = segment_bytes(step, segment);
  if (bytes > 0) reduce_range(step, offset, bytes, other);
}

/// Of whole elements; `other` begins with the first of them.
void Operation::reduce_range(const Step& step, std::uint64_t offset, std::uint32_t bytes,
                             const std::byte* other) {
  const std::byte* own = at(step.from, offset);
  if (step.received_second) return reduce_all(step, offset, bytes, std::array{own, other});
  reduce_all(step, offset, bytes, std::array{other, own});
}

/// to = the operands, two or more, in their order.
void Operation::reduce_all(const Step& step, std::uint64_t offset, std::uint32_t bytes,
                           std::span<const std::byte* const> operands) {
  const OpDescriptor& d = request_.descriptor;
  about_to_write(step.to, offset, bytes);
  std::byte* to = at(step.to, offset);
  const bool averages = step.finish && d.reduce == ReduceOp::avg;
  const std::size_t size = dtype_bytes(d.dtype);
  spread(bytes / size, size, [&](std::size_t begin, std::size_t end) {
    // The partial sums of several operands stay in the cache.
    const std::size_t whole = operands.size() > 2 ? kAddedBlockBytes / size : end - begin;
    for (std::size_t block = begin; block < end; block += whole) {
      const std::size_t count = std::min(end - block, whole);
      const std::size_t place = block * size;
      const std::byte* sum = operands[0];
      for (const std::byte* other : operands.subspan(1)) {
        reduce_into(to + place, sum + place, other + place, count, d.dtype, d.reduce);
        sum = to;
      }
      if (averages) finish_average(to + place, count, d.dtype, contributors_.size());
    }
  });
}

/// False: another rank has written to what it had lent, since its run of the operation is over;
/// this one ends too, or begins anew. If neither comes, that rank has lied, and is waited for.
bool Operation::add_borrowed(const Step& step, std::uint32_t segment) {
  std::vector<const std::byte*> operands{at(step.from, offset_of(segment))};
  for (const std::uint32_t b : step.borrowed) {
    const Borrowed& one = states_[b].borrowed.at(segment);
    operands.push_back(one.lender ? one.lender->at(one.place.slot) : one.buffer.data());
  }
  reduce_all(step, offset_of(segment), segment_bytes(step, segment), operands);
  bool held = true;
  for (const std::uint32_t b : step.borrowed) {
    const auto one = states_[b].borrowed.extract(segment);
    if (!one.mapped().lender || one.mapped().lender->holds(one.mapped().place)) continue;
    held = false;
    StepState& taken_back = states_[b];
    taken_back.done[segment] = false;
    if (taken_back.segments_done-- == taken_back.segments) ++steps_left_;
  }
  return held;
}

/// Calls part(begin, end) for parts of `count` elements, which are blocks of a quantisation too:
/// on several threads if there is enough to do.
template <typename Part>
void Operation::spread(std::size_t count, std::size_t element_bytes, const Part& part) {
  const std::size_t blocks = (count + kQuantisedBlock - 1) / kQuantisedBlock;
  const std::size_t worth = count * element_bytes / kSpreadBytes;
  const std::size_t parts = std::min({worth, blocks, port_->threads()});
  if (parts <= 1) return part(0, count);
  port_->each(parts, [&](std::size_t i) {
    const auto border = [&](std::size_t at) {
      return std::min(count, blocks * at / parts * kQuantisedBlock);
    };
    part(border(i), border(i + 1));
  });
}

/// `from` may overlap the range: a caller's input may lie across its output.
void Operation::write_range(const Step& step, std::uint64_t offset, std::uint32_t bytes,
                            const std::byte* from) {
  about_to_write(step.to, offset, bytes);
  std::byte* to = at(step.to, offset);
  const bool apart = from + bytes <= to || to + bytes <= from;
  if (!apart) {
    std::memmove(to, from, bytes);
    return;
  }
  const bool streaming = streams(step.to);
  spread(bytes, 1, [&](std::size_t begin, std::size_t end) {
    if (streaming) {
      copy_streaming(to + begin, from + begin, end - begin);
    } else {
      std::memcpy(to + begin, from + begin, end - begin);
    }
  });
}

/// The caches lose an output as large as they are before the program reads it: what is written
/// there goes around them.
bool Operation::streams(const Range& to) const {
  return to.space == Space::output && output_bytes() >= kStreamedOutputBytesMin;
}

void Operation::code(const Step& step) {
  const Quantisation how = request_.descriptor.quantisation;
  const std::byte* from = memory(step.from);
  if (step.kind == StepKind::quantise) {
    const auto* values = reinterpret_cast<const float*>(from);
    std::byte* to = memory(step.to);
    float* error = nullptr;
    if (request_.sum_error != nullptr && step.from.space == Space::output) {  // the values are sums
      const std::size_t first = step.from.offset / sizeof(float);
      error = request_.sum_error + first;
    }
    spread(step.from.bytes / sizeof(float), sizeof(float), [&](std::size_t begin, std::size_t end) {
      std::byte* codes = to + quantised_bytes(begin, how);
      quantise(codes, values + begin, end - begin, how);
      if (error != nullptr) add_error(error + begin, values + begin, codes, end - begin, how);
    });
    return;
  }
  const std::size_t count = step.to.bytes / sizeof(float);
  about_to_write(step.to, 0, step.to.bytes);
  auto* values = reinterpret_cast<float*>(memory(step.to));
  spread(count, sizeof(float), [&](std::size_t begin, std::size_t end) {
    const std::byte* codes = from + quantised_bytes(begin, how);
    if (step.kind == StepKind::dequantise) {
      dequantise(values + begin, codes, end - begin, how);
    } else {
      add_dequantised(values + begin, codes, end - begin, how);
    }
    if (step.finish) {
      finish_average(values + begin, end - begin, DType::f32, contributors_.size());
    }
  });
}

void Operation::about_to_write(const Range& range, std::uint64_t offset, std::uint64_t bytes) {
  if (preimage_ && range.space == Space::output) {
    preimage_->save(output_index(range), range.offset + offset, bytes);
  }
}

/// What an all-reduce publishes is overwritten later where it works in place: it is saved now,
/// since it is read now, and would have to be read once more then.
void Operation::about_to_publish(const Range& range, std::uint64_t offset, std::uint64_t bytes) {
  const bool in_place = request_.descriptor.kind == OpKind::all_reduce &&
                        range.space == Space::input &&
                        request_.inputs.front().data == request_.outputs.front().data;
  if (preimage_ && in_place) preimage_->save(0, range.offset + offset, bytes);
}

void Operation::sent(std::uint32_t index) {
  const auto [s, segment] = sends_.at(index);
  bytes_sent_ += segment_bytes(schedule_.steps[s], segment);
  mark_done(s, segment);
  drain();
}

void Operation::mark_done(std::uint32_t s, std::uint32_t segment) {
  StepState& state = states_[s];
  PCCL_ASSERT(!state.done[segment], s, segment);
  state.done[segment] = true;
  ++progress_;
  for (const std::uint32_t follower : state.followers) trigger(follower, segment);
  for (const Behind& waiter : state.waiters) {
    const std::uint32_t later = segment + waiter.segments;
    if (later < state.segments) trigger(waiter.step, later);
  }
  if (++state.segments_done < state.segments) return;
  if (--steps_left_ == 0) {
    area_.reset();
    no_area_.release();
  }
  for (const std::uint32_t dependent : state.dependents) {
    if (--states_[dependent].after_left > 0) continue;
    for (std::uint32_t i = 0; i < states_[dependent].segments; ++i) trigger(dependent, i);
  }
}

/// Does the work that has become possible, in a loop rather than by recursion: one step makes the
/// next possible, through whole schedules. What can be sent is given to the links at once: what
/// their sockets take moves while this thread computes.
void Operation::drain() {
  if (draining_) return;
  draining_ = true;
  const auto send_all = [this] {
    for (std::size_t i = 0; i < leaving_.size(); ++i) handle(leaving_[i].step, leaving_[i].segment);
    leaving_.clear();
  };
  send_all();
  for (std::size_t i = 0; i < work_.size(); ++i) {
    handle(work_[i].step, work_[i].segment);
    send_all();
  }
  work_.clear();
  draining_ = false;
}

// --------------------------------------------------------------------------------------- questions

std::uint64_t Operation::output_bytes() const { return total_bytes(request_.outputs); }

bool Operation::uses(const std::vector<Buffer>& memory) const {
  return touch(request_.inputs, memory) || touch(request_.outputs, memory);
}

bool Operation::waits_for_inputs() const {
  if (!request_.gate || request_.inputs.empty()) return false;
  return request_.gate->bytes.load() < input_begins_.back() + request_.inputs.back().bytes;
}

Operation::Progress Operation::moved() const {
  std::uint64_t to_receive = 0;
  std::uint64_t to_send = 0;
  for (const Step& step : schedule_.steps) {
    if (receives(step)) to_receive += length(step);
    if (step.kind == StepKind::send) to_send += length(step);
  }
  if (to_receive > 0) return {bytes_received_, to_receive, false};
  return {bytes_sent_, to_send, true};
}

bool Operation::misses_segments(std::uint32_t receive) const {
  const StepState& state = states_[receive];
  const std::size_t here = state.segments_done + state.held.size();
  return here < state.segments;
}

std::vector<std::uint32_t> Operation::waiting_for() const {
  std::vector<std::uint32_t> peers;
  for (std::uint32_t s = 0; s < states_.size(); ++s) {
    const Step& step = schedule_.steps[s];
    if (receives(step) && misses_segments(s)) peers.push_back(step.peer);
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

/// Of the first segment that is not done, or (`held_counts`) that has not come either.
std::uint32_t Operation::turn_of(std::uint32_t receive, bool held_counts) const {
  const Step& step = schedule_.steps[receive];
  const StepState& state = states_[receive];
  std::uint32_t segment = 0;
  while (state.done[segment] || (held_counts && state.held.contains(segment))) ++segment;
  return step.turn + step.turns * segment;
}

std::uint32_t Operation::waits_at() const {
  std::uint32_t turn = TellIssued::kNoStep;
  for (std::uint32_t s = 0; s < states_.size(); ++s) {
    const bool incomplete = states_[s].segments_done < states_[s].segments;
    if (receives(schedule_.steps[s]) && incomplete) turn = std::min(turn, turn_of(s, false));
  }
  return turn;
}

std::uint32_t Operation::waits_at(std::uint32_t contributor) const {
  std::uint32_t turn = TellIssued::kNoStep;
  for (std::uint32_t s = 0; s < states_.size(); ++s) {
    const Step& step = schedule_.steps[s];
    const bool from_it = receives(step) && step.peer == contributor;
    if (from_it && misses_segments(s)) turn = std::min(turn, turn_of(s, true));
  }
  return turn;
}

}  // namespace pccl
