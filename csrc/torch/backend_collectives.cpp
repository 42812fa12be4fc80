// The collectives and messages of PcclBackend: what torch gives becomes a Call. The rules that each
// override keeps: every check before the first post; sums of lengths and roots in the numbering
// that the caller sees.
#include <ATen/Functions.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <list>
#include <string>
#include <torch/csrc/distributed/c10d/Utils.hpp>
#include <utility>
#include <vector>

#include "torch/backend.h"
#include "torch/errors.h"
#include "torch/quantise.h"

namespace pccl {
namespace {

using c10d::OpType;
using Millis = PcclBackend::Millis;
using WorkPtr = PcclBackend::WorkPtr;

constexpr int kAnyRank = -1;

const at::Tensor& single(OpKind kind, const Tensors& tensors) {
  const char* words = "requires a single tensor";
  if (kind == OpKind::send || kind == OpKind::recv) words = "takes a single tensor";
  if (kind == OpKind::gather || kind == OpKind::all_gather) {
    words = "requires a single-element input tensor list";
  }
  if (kind == OpKind::scatter || kind == OpKind::reduce_scatter) {
    words = "requires a single-element output tensor list";
  }
  TORCH_CHECK(tensors.size() == 1, "pccl ", kind_name(kind), ": ", words, ", got ", tensors.size());
  return tensors.front();
}

const Tensors& single(OpKind kind, const std::vector<Tensors>& lists, std::int32_t size) {
  TORCH_CHECK(kind != OpKind::all_gather || lists.size() == 1,
              "pccl all_gather: requires input/output tensor lists to have the same length (1, ",
              "got ", lists.size(), ")");
  TORCH_CHECK(lists.size() == 1, "pccl ", kind_name(kind), ": requires a single-element ",
              kind == OpKind::gather ? "output" : "input", " list containing a list with ", size,
              " tensors. Got ", lists.size(), " lists");
  return lists.front();
}

/// The places of the tensors of each type, types in the order of their first tensor.
std::vector<std::vector<std::size_t>> places_by_type(const Tensors& tensors) {
  std::vector<std::vector<std::size_t>> places;
  for (const std::size_t i : c10::irange(tensors.size())) {
    const auto same = std::find_if(places.begin(), places.end(), [&](const auto& group) {
      return tensors[group.front()].scalar_type() == tensors[i].scalar_type();
    });
    if (same == places.end()) {
      places.push_back({i});
    } else {
      same->push_back(i);
    }
  }
  return places;
}

Tensors pick(const Tensors& tensors, const std::vector<std::size_t>& places) {
  Tensors picked;
  for (const std::size_t i : places) picked.push_back(tensors[i]);
  return picked;
}

void same_lengths(OpKind kind, const Tensors& outputs, const Tensors& inputs) {
  TORCH_CHECK(!inputs.empty(), "pccl ", kind_name(kind), ": requires a non-empty tensor list");
  TORCH_CHECK(inputs.size() == outputs.size(), "pccl ", kind_name(kind),
              ": invalid output size: (expected length ", inputs.size(), ", got ", outputs.size(),
              ")");
}

/// Elements for each rank, by the lengths along dimension 0 (none: equal parts).
std::vector<std::int64_t> numels_by_rank(const at::Tensor& tensor,
                                         const std::vector<std::int64_t>& lengths,
                                         std::int32_t size) {
  c10d::checkSplitSizes(lengths, tensor, size);
  if (lengths.empty()) return equal_parts(tensor.numel(), size);
  const std::int64_t row = tensor.size(0) == 0 ? 0 : tensor.numel() / tensor.size(0);
  std::vector<std::int64_t> numels;
  for (const std::int64_t length : lengths) {
    TORCH_CHECK(length >= 0, "Split sizes must not be negative, got ", length);
    numels.push_back(length * row);
  }
  return numels;
}

}  // namespace

// ------------------------------------------------------------------------------- collectives

WorkPtr PcclBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const at::Tensor& tensor = single(OpKind::broadcast, tensors);
  Call call(OpKind::broadcast, tensor);
  const Numbers group = numbers();
  call.numbered(group.numbering, group.rank);
  call.root(opts.rootRank, group.size);
  if (opts.rootTensor != 0) call.fail("invalid root tensor: " + std::to_string(opts.rootTensor));
  if (opts.rootRank == group.rank) {
    call.in_out(tensor);
  } else {
    call.output(tensor);
  }
  call.count(tensor.numel());
  return post(call, OpType::BROADCAST, opts.timeout, tensors, tensors);
}

WorkPtr PcclBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const at::Tensor& tensor = single(OpKind::all_reduce, tensors);
  const QuantisedCall asked = take_quantised_call();
  const bool exact = asked.how.value_or(Quantisation::none) == Quantisation::none;
  if (tensor.layout() == at::kSparse && exact) return allreduce_sparse(tensors, opts);
  Call call(OpKind::all_reduce, tensor);
  call.reduce(opts.reduceOp);
  call.quantise(quantisation_, asked.how);
  call.in_out(tensor);
  call.count(tensor.numel());
  if (asked.sum_error.defined()) call.keep_sum_error(asked.sum_error);
  return post(call, OpType::ALLREDUCE, opts.timeout, tensors, tensors);
}

WorkPtr PcclBackend::allreduce_coalesced(Tensors& tensors,
                                         const c10d::AllreduceCoalescedOptions& opts) {
  constexpr OpKind kKind = OpKind::all_reduce;
  same_lengths(kKind, tensors, tensors);
  for (const at::Tensor& tensor : tensors) {
    Call check(kKind, tensor);
    check.reduce(opts.reduceOp);
    check.writes(tensor);
  }
  std::list<Call> calls;
  for (const auto& places : places_by_type(tensors)) {
    const Tensors group = pick(tensors, places);
    Call& call = calls.emplace_back(kKind, group.front());
    call.reduce(opts.reduceOp);
    call.quantise(quantisation_);
    const at::Tensor flat = call.joined(group);
    call.in_out(flat);
    call.count(flat.numel());
    std::int64_t offset = 0;
    for (const at::Tensor& tensor : group) {
      call.copies_back(tensor, flat.narrow(0, offset, tensor.numel()));
      offset += tensor.numel();
    }
  }
  Parts parts;
  add(parts, calls, opts.timeout);
  return finish(std::move(parts), OpType::ALLREDUCE_COALESCED, title_of(kKind), tensors, tensors);
}

WorkPtr PcclBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const at::Tensor& tensor = single(OpKind::reduce, tensors);
  Call call(OpKind::reduce, tensor);
  const Numbers group = numbers();
  call.numbered(group.numbering, group.rank);
  call.root(opts.rootRank, group.size);
  if (opts.rootTensor != 0) call.fail("invalid root tensor: " + std::to_string(opts.rootTensor));
  call.reduce(opts.reduceOp);
  if (opts.rootRank == group.rank) {
    call.in_out(tensor);
  } else {
    call.input(tensor);
  }
  call.count(tensor.numel());
  return post(call, OpType::REDUCE, opts.timeout, tensors, tensors);
}

WorkPtr PcclBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                               const c10d::AllgatherOptions& opts) {
  const at::Tensor& input = single(OpKind::all_gather, inputs);
  Call call(OpKind::all_gather, input);
  const Numbers group = numbers();
  const Tensors& list = single(OpKind::all_gather, outputs, group.size);
  call.numbered(group.numbering, group.rank);
  call.one_per_rank(list, group.size, group.rank, input.numel());
  call.input(input);
  call.outputs(list);
  call.count_if_equal(list);
  return post(call, OpType::ALLGATHER, opts.timeout, inputs, list);
}

WorkPtr PcclBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                     const c10d::AllgatherOptions& opts) {
  Call call(OpKind::all_gather, input);
  const Numbers group = numbers();
  call.numbered(group.numbering, group.rank);
  call.same_type(output);
  call.same_numel(output, input.numel() * group.size);
  call.input(input);
  call.output_parts(output, equal_parts(output.numel(), group.size));
  call.count(input.numel());
  return post(call, OpType::_ALLGATHER_BASE, opts.timeout, {input}, {output});
}

WorkPtr PcclBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                     const c10d::AllgatherOptions& opts) {
  constexpr OpKind kKind = OpKind::all_gather;
  same_lengths(kKind, outputs, inputs);
  const Numbers group = numbers();
  for (const std::size_t i : c10::irange(inputs.size())) {
    const Call check(kKind, inputs[i]);
    check.same_type(outputs[i]);
    check.same_numel(outputs[i], inputs[i].numel() * group.size);
    if (!outputs[i].is_contiguous()) check.fail("outputs have to be contiguous");
    check.writes(outputs[i]);
  }
  std::list<Call> calls;
  for (const auto& places : places_by_type(inputs)) {
    Call& call = calls.emplace_back(kKind, inputs[places.front()]);
    call.numbered(group.numbering, group.rank);
    const at::Tensor from = call.joined(pick(inputs, places));
    const at::Tensor to = at::empty({group.size, from.numel()}, from.options());
    call.input(from);
    call.output_parts(to, equal_parts(to.numel(), group.size));
    call.count(from.numel());
    std::int64_t offset = 0;
    for (const std::size_t i : places) {
      const std::int64_t numel = inputs[i].numel();
      call.rows_copied_back(outputs[i], to.narrow(1, offset, numel));
      offset += numel;
    }
  }
  Parts parts;
  add(parts, calls, opts.timeout);
  return finish(std::move(parts), OpType::ALLGATHER_COALESCED, title_of(kKind), inputs, outputs);
}

WorkPtr PcclBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::AllgatherOptions& opts) {
  constexpr OpKind kKind = OpKind::all_gather;
  const Numbers group = numbers();
  TORCH_CHECK(outputs.size() == static_cast<std::size_t>(group.size),
              "pccl all_gather: output lists should be equal to world size");
  for (const Tensors& list : outputs) {
    same_lengths(kKind, list, inputs);
    for (const std::size_t i : c10::irange(inputs.size())) {
      const Call check(kKind, inputs[i]);
      check.same_type(list[i]);
      check.same_numel(list[i], inputs[i].numel());
      check.writes(list[i]);
    }
  }
  std::list<Call> calls;
  Tensors flat_outputs;
  for (const std::size_t i : c10::irange(inputs.size())) {
    Call& call = calls.emplace_back(kKind, inputs[i]);
    call.numbered(group.numbering, group.rank);
    call.input(inputs[i]);
    for (const Tensors& list : outputs) call.output(list[i]);
    call.count(inputs[i].numel());
  }
  for (const Tensors& list : outputs) {
    flat_outputs.insert(flat_outputs.end(), list.begin(), list.end());
  }
  Parts parts;
  add(parts, calls, opts.timeout);
  return finish(std::move(parts), OpType::ALLGATHER_COALESCED, title_of(kKind), inputs,
                std::move(flat_outputs));
}

WorkPtr PcclBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                            const c10d::GatherOptions& opts) {
  const at::Tensor& input = single(OpKind::gather, inputs);
  Call call(OpKind::gather, input);
  const Numbers group = numbers();
  call.numbered(group.numbering, group.rank);
  call.root(opts.rootRank, group.size);
  Tensors list;
  if (opts.rootRank == group.rank) {
    list = single(OpKind::gather, outputs, group.size);
    call.one_per_rank(list, group.size, group.rank, input.numel());
    call.outputs(list);
  } else if (!outputs.empty()) {
    call.fail("requires empty output on non-root");
  }
  call.input(input);
  return post(call, OpType::GATHER, opts.timeout, inputs, std::move(list));
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE
WorkPtr PcclBackend::gather_single(at::Tensor& output, at::Tensor& input,
                                   const c10d::GatherOptions& opts) {
  Call call(OpKind::gather, input);
  const Numbers group = numbers();
  call.numbered(group.numbering, group.rank);
  call.root(opts.rootRank, group.size);
  Tensors outputs;
  if (opts.rootRank == group.rank) {
    call.same_type(output);
    call.same_numel(output, input.numel() * group.size);
    call.output_parts(output, equal_parts(output.numel(), group.size));
    outputs.push_back(output);
  }
  call.input(input);
  call.count(input.numel());
  return post(call, OpType::GATHER, opts.timeout, {input}, std::move(outputs));
}
#endif

WorkPtr PcclBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ScatterOptions& opts) {
  const at::Tensor& output = single(OpKind::scatter, outputs);
  Call call(OpKind::scatter, output);
  const Numbers group = numbers();
  call.numbered(group.numbering, group.rank);
  call.root(opts.rootRank, group.size);
  Tensors list;
  if (opts.rootRank == group.rank) {
    list = single(OpKind::scatter, inputs, group.size);
    call.one_per_rank(list, group.size, group.rank, output.numel());
    call.inputs(list);
  } else if (!inputs.empty()) {
    call.fail("requires empty input on non-root");
  }
  call.output(output);
  return post(call, OpType::SCATTER, opts.timeout, list, outputs);
}

WorkPtr PcclBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                    const c10d::ReduceScatterOptions& opts) {
  const at::Tensor& output = single(OpKind::reduce_scatter, outputs);
  Call call(OpKind::reduce_scatter, output);
  const Numbers group = numbers();
  const Tensors& list = single(OpKind::reduce_scatter, inputs, group.size);
  call.numbered(group.numbering, group.rank);
  call.reduce(opts.reduceOp);
  call.one_per_rank(list, group.size, group.rank, output.numel());
  call.inputs(list);
  call.output(output);
  call.count_if_equal(list);
  return post(call, OpType::REDUCE_SCATTER, opts.timeout, list, outputs);
}

WorkPtr PcclBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::ReduceScatterOptions& opts) {
  Call call(OpKind::reduce_scatter, output);
  const Numbers group = numbers();
  call.numbered(group.numbering, group.rank);
  call.reduce(opts.reduceOp);
  call.same_type(input);
  call.same_numel(input, output.numel() * group.size);
  call.input_parts(input, equal_parts(input.numel(), group.size));
  call.output(output);
  call.count(output.numel());
  return post(call, OpType::_REDUCE_SCATTER_BASE, opts.timeout, {input}, {output});
}

WorkPtr PcclBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                     const c10d::ReduceScatterOptions& opts) {
  constexpr OpKind kKind = OpKind::reduce_scatter;
  same_lengths(kKind, outputs, inputs);
  const Numbers group = numbers();
  for (const std::size_t i : c10::irange(inputs.size())) {
    Call check(kKind, outputs[i]);
    check.reduce(opts.reduceOp);
    check.same_type(inputs[i]);
    check.same_numel(inputs[i], outputs[i].numel() * group.size);
    check.writes(outputs[i]);
  }
  std::list<Call> calls;
  for (const auto& places : places_by_type(outputs)) {
    Call& call = calls.emplace_back(kKind, outputs[places.front()]);
    call.numbered(group.numbering, group.rank);
    call.reduce(opts.reduceOp);
    const at::Tensor from = call.joined(pick(inputs, places), group.size);
    const at::Tensor to = at::empty({from.size(1)}, from.options());
    call.input_parts(from, equal_parts(from.numel(), group.size));
    call.output(to);
    call.count(to.numel());
    std::int64_t offset = 0;
    for (const std::size_t i : places) {
      const std::int64_t numel = outputs[i].numel();
      call.copies_back(outputs[i], to.narrow(0, offset, numel));
      offset += numel;
    }
  }
  Parts parts;
  add(parts, calls, opts.timeout);
  return finish(std::move(parts), OpType::_REDUCE_SCATTER_BASE, title_of(kKind), inputs, outputs);
}

WorkPtr PcclBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                   std::vector<std::int64_t>& output_splits,
                                   std::vector<std::int64_t>& input_splits,
                                   const c10d::AllToAllOptions& opts) {
  Call call(OpKind::all_to_all, input);
  const Numbers group = numbers();
  call.numbered(group.numbering, group.rank);
  call.same_type(output);
  const auto from = numels_by_rank(input, input_splits, group.size);
  const auto to = numels_by_rank(output, output_splits, group.size);
  if (input_splits.empty() && output_splits.empty()) call.same_numel(output, input.numel());
  const auto own = static_cast<std::size_t>(group.rank);
  if (from[own] != to[own]) {
    call.fail("rank " + std::to_string(group.rank) + " sends itself " + std::to_string(from[own]) +
              " elements and wants to receive " + std::to_string(to[own]) +
              ": its own input split and output split have to be equal");
  }
  call.input_parts(input, from);
  call.output_parts(output, to);
  return post(call, OpType::ALLTOALL_BASE, opts.timeout, {input}, {output});
}

WorkPtr PcclBackend::alltoall(Tensors& outputs, Tensors& inputs,
                              const c10d::AllToAllOptions& opts) {
  const Numbers group = numbers();
  TORCH_CHECK(!inputs.empty(), "pccl all_to_all: requires a non-empty tensor list");
  Call call(OpKind::all_to_all, inputs.front());
  call.numbered(group.numbering, group.rank);
  call.length(inputs, group.size, "input");
  call.same_type(inputs);
  call.one_per_rank(outputs, group.size, group.rank,
                    inputs[static_cast<std::size_t>(group.rank)].numel());
  call.inputs(inputs);
  call.outputs(outputs);
  return post(call, OpType::ALLTOALL, opts.timeout, inputs, outputs);
}

// ------------------------------------------------------------------------------- point to point

WorkPtr PcclBackend::send(Tensors& tensors, int destination, int tag) {
  return point_to_point(OpKind::send, OpType::SEND, tensors, destination, tag);
}

WorkPtr PcclBackend::recv(Tensors& tensors, int source, int tag) {
  return point_to_point(OpKind::recv, OpType::RECV, tensors, source, tag);
}

WorkPtr PcclBackend::recvAnysource(Tensors& tensors, int tag) {
  return point_to_point(OpKind::recv, OpType::RECVANYSOURCE, tensors, kAnyRank, tag);
}

WorkPtr PcclBackend::point_to_point(OpKind kind, OpType type, Tensors& tensors, int peer, int tag) {
  const at::Tensor& tensor = single(kind, tensors);
  Call call(kind, tensor);
  const Numbers group = numbers();
  call.numbered(group.numbering, group.rank);
  if (tag < 0) call.fail("Tag must be nonnegative, got " + std::to_string(tag));
  if (!tensor.is_contiguous()) call.fail("input tensor has to be contiguous");
  if (type != OpType::RECVANYSOURCE && (peer < 0 || peer >= group.size)) {
    call.fail("invalid rank: " + std::to_string(peer));
  }
  if (peer == group.rank) call.fail("the other rank is this one: " + std::to_string(peer));
  if (kind == OpKind::send) {
    call.input(tensor);
  } else {
    call.output(tensor);
  }
  call.message(peer, static_cast<std::uint64_t>(tag));
  Parts parts;
  parts.collective = false;
  add(parts, call, c10d::kUnsetTimeout);
  const char* title = type == OpType::RECVANYSOURCE ? "pccl:recvAnySource" : title_of(kind);
  return finish(std::move(parts), type, title, tensors, tensors);
}

}  // namespace pccl
