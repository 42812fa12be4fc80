// Sparse all-reduce over all_gather. The engine knows no sparse tensors: each rank gets the indices
// and values of all of them and adds them up in rank order, so that all hold the same bits.
#include <ATen/Functions.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "torch/backend.h"
#include "torch/errors.h"

namespace pccl {
namespace {

constexpr std::int64_t kDimsMax = 16;

/// The data that other ranks must know: sparse dimensions, dimensions, elements, sizes.
at::Tensor describe(const at::Tensor& tensor, std::int64_t elements) {
  TORCH_CHECK(tensor.dim() <= kDimsMax, "pccl all_reduce: sparse tensors have at most ", kDimsMax,
              " dimensions, got ", tensor.dim());
  at::Tensor words = at::zeros({3 + kDimsMax}, at::kLong);
  auto word = words.accessor<std::int64_t, 1>();
  word[0] = tensor.sparse_dim();
  word[1] = tensor.dim();
  word[2] = elements;
  for (const auto d : c10::irange(tensor.dim())) word[3 + d] = tensor.size(d);
  return words;
}

void check_same_shape(const Tensors& words, std::size_t own) {
  const auto without_count = [](const at::Tensor& of) {
    at::Tensor shape = of.clone();
    shape[2] = 0;
    return shape;
  };
  const at::Tensor mine = without_count(words[own]);
  for (const auto rank : c10::irange(words.size())) {
    if (at::equal(without_count(words[rank]), mine)) continue;
    raise({ErrorCode::mismatch, "all_reduce of sparse tensors: the sizes at rank " +
                                    std::to_string(rank) + " differ from those at rank " +
                                    std::to_string(own)});
  }
}

/// Indices of other ranks are used without a check: beyond the sizes they would be addresses.
void check_indices(const Tensors& by_rank, const at::Tensor& tensor) {
  for (const auto rank : c10::irange(by_rank.size())) {
    if (by_rank[rank].size(1) == 0) continue;
    for (const auto d : c10::irange(by_rank[rank].size(0))) {
      const at::Tensor along = by_rank[rank][d];
      const auto least = along.min().item<std::int64_t>();
      const auto most = along.max().item<std::int64_t>();
      if (least >= 0 && most < tensor.size(d)) continue;
      raise({ErrorCode::mismatch, "all_reduce of sparse tensors: rank " + std::to_string(rank) +
                                      " has the index " + std::to_string(least < 0 ? least : most) +
                                      " in dimension " + std::to_string(d) + ", of size " +
                                      std::to_string(tensor.size(d))});
    }
  }
}

struct SparseParts {
  at::Tensor indices;
  at::Tensor values;
};

/// Of the coalesced tensor. Its values are on the CPU, and of a type that can be moved.
SparseParts parts_of(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor own = tensor.coalesce();
  SparseParts parts{own.indices().contiguous(), own.values().contiguous()};
  static_cast<void>(Call(OpKind::all_reduce, parts.values));
  return parts;
}

}  // namespace

PcclBackend::WorkPtr PcclBackend::allreduce_sparse(Tensors& tensors,
                                                   const c10d::AllreduceOptions& opts) {
  TORCH_CHECK(tensors.size() == 1 && tensors.front().layout() == at::kSparse,
              "pccl all_reduce: requires a single sparse COO tensor");
  TORCH_CHECK(opts.reduceOp == c10d::ReduceOp::SUM,
              "pccl all_reduce: unsupported reduction operation (allreduce of sparse tensors only ",
              "works with ReduceOp.SUM)");
  TORCH_CHECK(tensors.front().device().is_cpu(), "pccl all_reduce: sparse tensors have to be on ",
              "the CPU (got one on ", tensors.front().device(), ")");
  const at::Tensor tensor = tensors.front();  // itself: detach() of a sparse one shares no indices
  const auto context = ready();
  for (const auto& work : context->uncopied->all()) {
    const bool same = std::any_of(work->outputs().begin(), work->outputs().end(),
                                  [&](const at::Tensor& other) { return other.is_same(tensor); });
    if (same) work->settle();
  }
  const std::vector<Buffer> memory = {extent_of(tensor._indices()), extent_of(tensor._values())};
  wait_for_memory(*context, memory, Extents(memory));
  const auto [indices, values] = parts_of(tensor);
  const Numbers group = numbers();

  const auto gather = [&](Parts& parts, const at::Tensor& input, const Tensors& list) {
    Call call(OpKind::all_gather, input);
    call.input(input);
    call.outputs(list);
    add(parts, call, opts.timeout);
  };
  const at::Tensor words = describe(tensor, values.size(0));
  Tensors all_words(static_cast<std::size_t>(group.size));
  for (at::Tensor& each : all_words) each = at::empty_like(words);
  Parts first;
  gather(first, words, all_words);
  // Its time-out is the operation's.
  finish(std::move(first), c10d::OpType::ALLGATHER, nullptr, {}, all_words)->wait();
  check_same_shape(all_words, static_cast<std::size_t>(group.rank));

  Tensors all_indices;
  Tensors all_values;
  for (const at::Tensor& each : all_words) {
    const auto count = each[2].item<std::int64_t>();
    auto sizes = values.sizes().vec();
    sizes[0] = count;
    all_indices.push_back(at::empty({indices.size(0), count}, indices.options()));
    all_values.push_back(at::empty(sizes, values.options()));
  }
  Parts parts;
  gather(parts, indices, all_indices);
  gather(parts, values, all_values);
  parts.after = [tensor, all_indices, all_values] {
    check_indices(all_indices, tensor);
    const at::Tensor sum = at::sparse_coo_tensor(at::cat(all_indices, 1), at::cat(all_values, 0),
                                                 tensor.sizes(), tensor.options());
    at::Tensor(tensor).copy_(sum.coalesce());
  };
  return finish(std::move(parts), c10d::OpType::ALLREDUCE, "pccl:sparse_all_reduce", tensors,
                tensors);
}

}  // namespace pccl
