// From the arguments of a c10d call to an OpRequest: checks first (before anything is sent, with
// gloo's classes and texts of errors), then buffers. A tensor that the engine cannot use as it is
// (not contiguous, lazily conjugated) goes through a temporary, copied back after success. Decides
// nothing else.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "engine/request.h"
#include "python/completions.h"
#include "torch/copy_back.h"
#include "torch/staging.h"

namespace pccl {

using Tensors = std::vector<at::Tensor>;

/// One c10d call on its way to the engine. Lives on the caller's stack during the call.
class Call {
 public:
  /// `like` has the type of all tensors of the call; refuses types that no operation takes.
  Call(OpKind kind, const at::Tensor& like);
  explicit Call(OpKind kind);  // without tensors: barrier

  // Checks. They throw the errors that gloo throws.
  /// `tensor` is dense, on the device and of the type of `like`.
  void same_type(const at::Tensor& tensor, std::size_t index = 0) const;
  void same_type(const Tensors& tensors) const;
  /// `index`: place among the tensors of the call, for the error.
  void same_numel(const at::Tensor& tensor, std::int64_t numel, std::size_t index = 0) const;
  /// `side`: "input" or "output".
  void length(const Tensors& tensors, std::int32_t size, const std::string& side) const;
  /// One tensor for each rank, that of `own_rank` with `own_numel` elements.
  void one_per_rank(const Tensors& tensors, std::int32_t size, std::int32_t own_rank,
                    std::int64_t own_numel) const;
  void root(std::int64_t rank, std::int32_t size);
  /// The numbering by which roots, ranks and lists of this call are checked, and the own rank in
  /// it.
  void numbered(Numbering numbering, std::int32_t own_rank) {
    request_.numbering = std::move(numbering);
    own_rank_ = own_rank;
  }
  void reduce(const c10d::ReduceOp& op);
  /// After `in_out`. OpRequest::sum_error: a contiguous float32 tensor on the CPU, as large.
  void keep_sum_error(const at::Tensor& tensor);
  /// After `reduce`. `asked`: of this call alone, which must be one that can be quantised.
  void quantise(Quantisation of_group, std::optional<Quantisation> asked = std::nullopt);
  [[noreturn]] void fail(const std::string& why) const;

  // Buffers, in the order in which collectives/schedule.h has them.
  void input(const at::Tensor& tensor);
  void output(const at::Tensor& tensor);
  void in_out(const at::Tensor& tensor);  // one memory for both
  void inputs(const Tensors& tensors);
  void outputs(const Tensors& tensors);
  /// A tensor with the elements of all tensors, one after the other; in `rows` rows, each of which
  /// has an equal part of each tensor. Filled by `fill`.
  at::Tensor joined(const Tensors& tensors, std::int64_t rows = 1);
  /// The result in `from`, a temporary, is that of `to`; its sizes may differ from those of `to`.
  void copies_back(const at::Tensor& to, const at::Tensor& from);
  /// The same, where `from` has rows that do not lie side by side, and `to` is contiguous.
  void rows_copied_back(const at::Tensor& to, const at::Tensor& from);
  /// Refuses a tensor that cannot be written: several of its elements share one place.
  void writes(const at::Tensor& tensor) const;
  /// One tensor cut along its memory into parts of these many elements.
  void input_parts(const at::Tensor& tensor, const std::vector<std::int64_t>& numels);
  void output_parts(const at::Tensor& tensor, const std::vector<std::int64_t>& numels);

  /// All ranks must have the same number of elements.
  void count(std::int64_t numel);
  /// The same, if these tensors have equal sizes.
  void count_if_equal(const Tensors& tensors);

  /// send, recv: the other rank (recv: -1 is any). Sender and receiver need not agree on the type.
  void message(std::int32_t peer, std::uint64_t tag);

  /// Does an input overlap an output? No if both are exactly the same memory, as in place.
  [[nodiscard]] bool touches_itself() const;
  /// The memory of the program that this call reads into temporaries, or that their results are
  /// copied to. `fill` reads it, the outcome writes it, and the engine does not see it.
  [[nodiscard]] std::vector<Buffer> apart() const;
  /// And the memory that the engine uses itself.
  [[nodiscard]] std::vector<Buffer> all_memory() const;
  /// The inputs that overlap an output go through temporaries, unless they are that rank's own part
  /// of it: the engine reads and writes in an order of its own.
  void separate();
  /// The memory of the program that `fill` reads.
  [[nodiscard]] std::vector<Buffer> sources() const;
  /// Fills the temporaries: before, their contents are nothing. On a device the caller's current
  /// stream does it.
  void fill();
  /// Afterwards, on a device: the memory that it has read.
  [[nodiscard]] const std::vector<Buffer>& filled_from() const { return filled_from_; }

  /// Moves the request out; the storages of its tensors stay alive until the outcome.
  [[nodiscard]] OpRequest take(const std::shared_ptr<Completions>& completions);

  [[nodiscard]] OpKind kind() const { return request_.descriptor.kind; }
  [[nodiscard]] std::vector<CopyBack>& copies() { return copies_; }
  [[nodiscard]] Tensors& temporaries() { return temporaries_; }
  [[nodiscard]] c10::Device device() const { return device_; }
  /// The device tensors that have to be copied (staging.h).
  [[nodiscard]] std::vector<Staged>& staged() { return staged_; }

 private:
  void premultiply(const c10d::ReduceOp& op);
  [[nodiscard]] at::Tensor multiplied(const at::Tensor& tensor) const;
  /// Of the sizes of `tensor`, to be filled with its elements.
  at::Tensor temporary_of(const at::Tensor& tensor);
  at::Tensor readable(const at::Tensor& tensor);
  at::Tensor writable(const at::Tensor& tensor, bool with_contents);
  /// The memory that the engine uses for a tensor.
  at::Tensor on_host(const at::Tensor& tensor, bool input, bool output);
  /// Does a tensor overlap an output that was added before? Then it is received elsewhere, and the
  /// last of the overlapping outputs is written last, as with gloo.
  [[nodiscard]] bool touches_output(const at::Tensor& tensor) const;
  Buffer buffer(const at::Tensor& tensor, std::int64_t offset, std::int64_t numel);

  at::ScalarType scalar_type_ = at::ScalarType::Undefined;
  std::int64_t element_bytes_ = 1;
  std::int32_t own_rank_ = 0;
  at::Tensor factor_;  // PREMUL_SUM
  c10::Device device_ = at::kCPU;
  OpRequest request_;
  std::vector<c10::Storage> storages_;
  struct Fill {
    at::Tensor to;            // a temporary
    Tensors from;             // several: joined, in rows
    bool multiplies = false;  // by factor_, the only one
  };
  std::vector<Fill> fills_;
  std::vector<Buffer> filled_from_;
  std::vector<std::size_t> separated_;  // inputs of the request: the program's memory until `fill`
  std::vector<CopyBack> copies_;
  Tensors written_;  // by outputs so far
  std::vector<Staged> staged_;
  Tensors temporaries_;
};

/// Equal parts of `numel` elements: `parts` times the same number.
[[nodiscard]] std::vector<std::int64_t> equal_parts(std::int64_t numel, std::int32_t parts);

}  // namespace pccl
