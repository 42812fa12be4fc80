// See convert.h.
#include "torch/convert.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/reduce.h"

namespace pccl {
namespace {

/// FSDP frees the storage of a parameter, and a program may, too.
bool has_memory(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  if (!tensor.has_storage() || tensor.storage().data() == nullptr) return false;
  const std::size_t needed =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(),
                                       static_cast<std::size_t>(tensor.storage_offset()));
  return needed <= tensor.storage().nbytes();
}

DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::ScalarType::Byte:
      return DType::u8;
    case at::ScalarType::Char:
      return DType::i8;
    case at::ScalarType::Short:
      return DType::i16;
    case at::ScalarType::UInt16:
      return DType::u16;
    case at::ScalarType::Int:
      return DType::i32;
    case at::ScalarType::UInt32:
      return DType::u32;
    case at::ScalarType::Long:
      return DType::i64;
    case at::ScalarType::UInt64:
      return DType::u64;
    case at::ScalarType::Half:
      return DType::f16;
    case at::ScalarType::BFloat16:
      return DType::bf16;
    case at::ScalarType::Float:
      return DType::f32;
    case at::ScalarType::Double:
      return DType::f64;
    case at::ScalarType::Bool:
      return DType::boolean;
    case at::ScalarType::ComplexFloat:
      return DType::c64;
    case at::ScalarType::ComplexDouble:
      return DType::c128;
    case at::ScalarType::Float8_e4m3fn:
      return DType::f8_e4m3;
    case at::ScalarType::Float8_e5m2:
      return DType::f8_e5m2;
    default:
      return DType::bytes;
  }
}

ReduceOp reduce_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM:
      return ReduceOp::sum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::avg;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::product;
    case c10d::ReduceOp::MIN:
      return ReduceOp::min;
    case c10d::ReduceOp::MAX:
      return ReduceOp::max;
    case c10d::ReduceOp::BAND:
      return ReduceOp::band;
    case c10d::ReduceOp::BOR:
      return ReduceOp::bor;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::bxor;
    default:
      return ReduceOp::none;
  }
}

/// As long as it lives, no operation is recorded. Never while the call waits: handlers of signals
/// run then.
struct BelowAutograd {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView plain;
};

bool usable(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

/// The objects that a request keeps alive. They are released on the engine's thread, unless that
/// could take long or needs the GIL.
struct KeptStorages {
  std::vector<c10::Storage> storages;
  bool of_program = true;  // and not what stands in for device tensors
  std::shared_ptr<Completions> completions;
};

void release(KeptStorages* kept) {
  // The program may drop its own reference at any moment: the count decides where it costs time
  // alone.
  const bool here =
      std::all_of(kept->storages.begin(), kept->storages.end(), [&](const c10::Storage& storage) {
        return storage.use_count() > 1 && (!kept->of_program || is_plain(storage));
      });
  if (here) {
    delete kept;
    return;
  }
  const auto completions = kept->completions;
  completions->run([kept] { delete kept; });
}

}  // namespace

// ------------------------------------------------------------------------------- checks

Call::Call(OpKind kind, const at::Tensor& like) {
  request_.descriptor.kind = kind;
  TORCH_CHECK(like.defined(), "pccl ", kind_name(kind), ": undefined tensor");
  scalar_type_ = like.scalar_type();
  element_bytes_ = static_cast<std::int64_t>(like.element_size());
  device_ = like.device();
  if (!device_.is_cpu() && (device_.is_meta() || !c10::impl::hasDeviceGuardImpl(device_.type()))) {
    fail("tensors on " + device_.str() + " cannot be used");
  }
  if (!device_.is_cpu()) refuse_capture(device_, kind_name(kind));
  request_.descriptor.dtype = dtype_of(scalar_type_);
  same_type(like);
}

Call::Call(OpKind kind) { request_.descriptor.kind = kind; }

void Call::fail(const std::string& why) const {
  TORCH_CHECK(false, "pccl ", kind_name(kind()), ": ", why);
}

void Call::same_type(const at::Tensor& tensor, std::size_t index) const {
  if (!tensor.defined()) fail("undefined tensor");
  if (tensor.layout() != at::kStrided) fail("only supports dense tensors");
  if (tensor.device() != device_) {
    fail("invalid tensor type at index " + std::to_string(index) + ": all tensors must be on one " +
         "device (got one on " + device_.str() + " and one on " + tensor.device().str() + ")");
  }
  if (tensor.scalar_type() != scalar_type_) {
    fail("invalid tensor type at index " + std::to_string(index) + " (expected " +
         c10::toString(scalar_type_) + ", got " + c10::toString(tensor.scalar_type()) +
         "): all tensors must be of one type");
  }
  if (!has_memory(tensor)) {
    fail("the tensor at index " + std::to_string(index) + " has no memory for its " +
         std::to_string(tensor.numel()) +
         " elements: its storage was freed or made smaller, or it is of a class that wraps other " +
         "tensors; expected a tensor with memory of its own");
  }
}

void Call::same_type(const Tensors& tensors) const {
  for (std::size_t i = 0; i < tensors.size(); ++i) same_type(tensors[i], i);
}

void Call::same_numel(const at::Tensor& tensor, std::int64_t numel, std::size_t index) const {
  if (tensor.numel() == numel) return;
  fail("invalid tensor size at index " + std::to_string(index) + " (expected " +
       std::to_string(numel) + " elements, got " + std::to_string(tensor.numel()) + ")");
}

void Call::length(const Tensors& tensors, std::int32_t size, const std::string& side) const {
  if (tensors.size() == static_cast<std::size_t>(size)) return;
  const std::string got = std::to_string(tensors.size());
  const std::string wanted = std::to_string(size);
  switch (kind()) {
    case OpKind::all_gather:
      fail("invalid output tensor list at index 0 (expected length " + wanted + ", got " + got +
           "): one tensor for each rank is needed");
    case OpKind::all_to_all:
      fail(side + " tensor list size " + got + " does not match world size " + wanted);
    case OpKind::reduce_scatter:
      fail("invalid input tensor list size, must be world size (" + wanted + ", got " + got + ")");
    default:
      fail("Incorrect " + side + " list size " + got + ". " + (side == "input" ? "In" : "Out") +
           "put list size should be " + wanted + ", same as size of the process group.");
  }
}

void Call::one_per_rank(const Tensors& tensors, std::int32_t size, std::int32_t own_rank,
                        std::int64_t own_numel) const {
  const bool inputs = kind() == OpKind::scatter || kind() == OpKind::reduce_scatter;
  length(tensors, size, inputs ? "input" : "output");
  same_type(tensors);
  const auto own = static_cast<std::size_t>(own_rank);
  same_numel(tensors[own], own_numel, own);
}

void Call::root(std::int64_t rank, std::int32_t size) {
  if (rank < 0 || rank >= size) fail("invalid root rank: " + std::to_string(rank));
  request_.descriptor.root = static_cast<std::int32_t>(rank);
}

void Call::reduce(const c10d::ReduceOp& op) {
  const ReduceOp reduction = reduce_of(op);
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) premultiply(op);
  if (reduction == ReduceOp::none) fail("invalid reduction");
  if (!reducible(request_.descriptor.dtype, reduction)) {
    const bool bits =
        reduction == ReduceOp::band || reduction == ReduceOp::bor || reduction == ReduceOp::bxor;
    std::string name(reduce_name(reduction));
    std::transform(name.begin(), name.end(), name.begin(), [](char letter) {
      return letter >= 'a' && letter <= 'z' ? static_cast<char>(letter - 'a' + 'A') : letter;
    });
    fail((bits ? "Cannot use ReduceOp." + name + " with non-integral dtype: " : std::string()) +
         "cannot reduce " + std::string(c10::toString(scalar_type_)) + " tensors with " +
         std::string(reduce_name(reduction)));
  }
  request_.descriptor.reduce = reduction;
}

void Call::quantise(Quantisation of_group, std::optional<Quantisation> asked) {
  OpDescriptor& d = request_.descriptor;
  const bool can = quantisable(d.kind, d.reduce, d.dtype);
  if (can) d.quantisation = asked.value_or(of_group);
  if (!can && asked.value_or(Quantisation::none) != Quantisation::none) {
    fail("only sums and averages of float32 tensors can be quantised, got " +
         std::string(reduce_name(d.reduce)) + " of " + std::string(c10::toString(scalar_type_)) +
         "; leave quantise= out");
  }
}

void Call::keep_sum_error(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.is_cpu() && tensor.scalar_type() == at::kFloat &&
                        tensor.is_contiguous() && tensor.nbytes() == request_.outputs.front().bytes,
                    "pccl: sum_error is a ", tensor.scalar_type(), " tensor of ", tensor.numel(),
                    " elements on ", tensor.device(),
                    "; expected a contiguous float32 one on the CPU, as large as the call's");
  storages_.push_back(tensor.storage());
  request_.sum_error = tensor.mutable_data_ptr<float>();
}

/// Each rank multiplies its contribution by a factor of its own, a number or a tensor with one
/// element.
void Call::premultiply(const c10d::ReduceOp& op) {
  const BelowAutograd quiet;
  const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (supplement == nullptr) fail("ReduceOp.PREMUL_SUM without a factor");
  if (!at::isFloatingType(scalar_type_) && !at::isComplexType(scalar_type_)) {
    fail(std::string("ReduceOp.PREMUL_SUM needs a floating type, got ") +
         c10::toString(scalar_type_));
  }
  if (!supplement->tensor_factor.defined()) {
    factor_ = at::scalar_tensor(supplement->double_factor, at::kDouble);
  } else if (supplement->tensor_factor.numel() == 1) {
    factor_ = supplement->tensor_factor.reshape({});
  } else {
    fail("the factor of ReduceOp.PREMUL_SUM has " +
         std::to_string(supplement->tensor_factor.numel()) + " elements, expected one");
  }
}

at::Tensor Call::multiplied(const at::Tensor& tensor) const {
  const bool eight_bits = tensor.element_size() == 1;  // float8: there is no multiplication
  const at::Tensor values = eight_bits ? tensor.to(at::kFloat) : tensor;
  // A number on the CPU becomes an argument of the kernel: a copy of it would wait for the device.
  const at::Tensor factor = factor_.is_cpu() ? factor_ : factor_.to(values.device());
  return values.mul(factor).to(tensor.scalar_type()).contiguous();
}

void Call::count(std::int64_t numel) {
  const bool as_bytes = request_.descriptor.dtype == DType::bytes;
  const auto elements = static_cast<std::uint64_t>(as_bytes ? numel * element_bytes_ : numel);
  request_.descriptor.count = elements == 0 ? kNoElements : elements;
}

void Call::count_if_equal(const Tensors& tensors) {
  const std::int64_t numel = tensors.empty() ? 0 : tensors.front().numel();
  const bool equal = std::all_of(tensors.begin(), tensors.end(),
                                 [&](const at::Tensor& t) { return t.numel() == numel; });
  if (equal) count(numel);
}

// ------------------------------------------------------------------------------- buffers

at::Tensor Call::temporary_of(const at::Tensor& tensor) {
  const BelowAutograd quiet;
  fills_.push_back({at::empty(tensor.sizes(), tensor.options()), {tensor}, factor_.defined()});
  return fills_.back().to;
}

at::Tensor Call::readable(const at::Tensor& tensor) {
  if (usable(tensor) && !factor_.defined()) return tensor;
  temporaries_.push_back(temporary_of(tensor));
  return temporaries_.back();
}

at::Tensor Call::writable(const at::Tensor& tensor, bool with_contents) {
  const BelowAutograd quiet;
  const bool multiply = with_contents && factor_.defined();
  const bool direct = usable(tensor) && !multiply && !touches_output(tensor);
  if (device_.is_cpu()) written_.push_back(tensor);
  if (direct) return tensor;
  writes(tensor);
  const at::Tensor temporary =
      with_contents ? temporary_of(tensor) : at::empty(tensor.sizes(), tensor.options());
  copies_.push_back({tensor, temporary});
  return temporary;
}

void Call::writes(const at::Tensor& tensor) const {
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    fail(
        "several elements of a tensor that is written share one place in memory; clone() it first");
  }
}

at::Tensor Call::joined(const Tensors& tensors, std::int64_t rows) {
  const BelowAutograd quiet;
  std::int64_t numel = 0;
  for (const at::Tensor& tensor : tensors) numel += tensor.numel();
  const at::Tensor whole = at::empty({rows, numel / rows}, tensors.front().options());
  fills_.push_back({whole, tensors});
  return rows == 1 ? whole.view({-1}) : whole;
}

void Call::copies_back(const at::Tensor& to, const at::Tensor& from) {
  const BelowAutograd quiet;
  copies_.push_back({to, from.view(to.sizes())});
}

void Call::rows_copied_back(const at::Tensor& to, const at::Tensor& from) {
  const BelowAutograd quiet;
  copies_.push_back({to.view(from.sizes()), from});
}

void Call::fill() {
  const BelowAutograd quiet;
  if (!device_.is_cpu()) filled_from_ = sources();
  for (Fill& one : std::exchange(fills_, {})) {
    if (one.from.size() == 1) {
      const at::Tensor& from = one.from.front();
      const at::Tensor values = one.multiplies ? multiplied(from) : from;
      one.to.view(from.sizes()).copy_(values, /*non_blocking=*/true);  // the stream keeps the order
      continue;
    }
    const std::int64_t rows = one.to.size(0);
    for (at::Tensor& from : one.from) from = from.reshape({rows, from.numel() / rows});
    at::cat_out(one.to, one.from, 1);
  }
  for (const std::size_t i : std::exchange(separated_, {})) {
    Buffer& input = request_.inputs[i];
    const auto options = at::TensorOptions().dtype(at::kByte);
    const at::Tensor copy =
        at::from_blob(input.data, {static_cast<std::int64_t>(input.bytes)}, options).clone();
    storages_.push_back(copy.storage());
    input.data = static_cast<std::byte*>(copy.mutable_data_ptr());
  }
}

std::vector<Buffer> Call::sources() const {
  std::vector<Buffer> memory;
  for (const Fill& one : fills_) {
    for (const at::Tensor& from : one.from) memory.push_back(extent_of(from));
  }
  for (const std::size_t i : separated_) memory.push_back(request_.inputs[i]);
  return memory;
}

std::vector<Buffer> Call::apart() const {
  std::vector<Buffer> memory = sources();
  for (const Buffer& result : results_of(copies_)) memory.push_back(result);
  return memory;
}

std::vector<Buffer> Call::all_memory() const {
  std::vector<Buffer> memory = apart();
  memory.insert(memory.end(), request_.inputs.begin(), request_.inputs.end());
  memory.insert(memory.end(), request_.outputs.begin(), request_.outputs.end());
  return memory;
}

at::Tensor Call::on_host(const at::Tensor& tensor, bool input, bool output) {
  if (device_.is_cpu()) return tensor;
  const BelowAutograd quiet;
  staged_.push_back(stage(tensor, input, output));
  return staged_.back().host;
}

Buffer Call::buffer(const at::Tensor& tensor, std::int64_t offset, std::int64_t numel) {
  if (numel == 0) return {};
  if (storages_.empty() || !storages_.back().is_alias_of(tensor.storage())) {
    storages_.push_back(tensor.storage());
  }
  auto* data = static_cast<std::byte*>(tensor.mutable_data_ptr()) + offset * element_bytes_;
  return {data, static_cast<std::uint64_t>(numel * element_bytes_)};
}

void Call::input(const at::Tensor& tensor) {
  const at::Tensor from = on_host(readable(tensor), true, false);
  request_.inputs.push_back(buffer(from, 0, from.numel()));
}

void Call::output(const at::Tensor& tensor) {
  const at::Tensor to = on_host(writable(tensor, false), false, true);
  request_.outputs.push_back(buffer(to, 0, to.numel()));
}

void Call::in_out(const at::Tensor& tensor) {
  const at::Tensor both = on_host(writable(tensor, true), true, true);
  request_.inputs.push_back(buffer(both, 0, both.numel()));
  request_.outputs.push_back(request_.inputs.back());
}

void Call::inputs(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) input(tensor);
}

void Call::outputs(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) output(tensor);
}

void Call::input_parts(const at::Tensor& tensor, const std::vector<std::int64_t>& numels) {
  const at::Tensor from = on_host(readable(tensor), true, false);
  std::int64_t offset = 0;
  for (const std::int64_t numel : numels) {
    request_.inputs.push_back(buffer(from, offset, numel));
    offset += numel;
  }
}

void Call::output_parts(const at::Tensor& tensor, const std::vector<std::int64_t>& numels) {
  const at::Tensor to = on_host(writable(tensor, false), false, true);
  std::int64_t offset = 0;
  for (const std::int64_t numel : numels) {
    request_.outputs.push_back(buffer(to, offset, numel));
    offset += numel;
  }
}

void Call::message(std::int32_t peer, std::uint64_t tag) {
  request_.peer = peer;
  request_.tag = tag;
  request_.descriptor.dtype = DType::bytes;
}

bool Call::touches_output(const at::Tensor& tensor) const {
  if (!device_.is_cpu()) return false;
  const Buffer own = extent_of(tensor);
  return std::any_of(written_.begin(), written_.end(),
                     [&](const at::Tensor& other) { return touch(own, extent_of(other)); });
}

bool Call::touches_itself() const {
  if (!device_.is_cpu()) return false;  // the engine has host memory of its own for each
  const bool single = request_.inputs.size() == 1 && request_.outputs.size() == 1;
  if (single && request_.inputs.front().data == request_.outputs.front().data &&
      request_.inputs.front().bytes == request_.outputs.front().bytes) {
    return false;
  }
  return Extents(request_.inputs).touches(Extents(request_.outputs));
}

void Call::separate() {
  const auto own = static_cast<std::size_t>(own_rank_);
  const bool each = kind() == OpKind::all_to_all;
  const std::vector<Buffer>& outputs = request_.outputs;
  for (std::size_t i = 0; i < request_.inputs.size(); ++i) {
    const Buffer& input = request_.inputs[i];
    for (std::size_t j = 0; j < outputs.size(); ++j) {
      if (!touch(input, outputs[j])) continue;
      const bool same = input.data == outputs[j].data && input.bytes == outputs[j].bytes;
      // Of an all_to_all the part of another rank may come before the one to it has left.
      const bool its_own =
          each ? i == j && i == own
               : (request_.inputs.size() == 1 || i == own) && (outputs.size() == 1 || j == own);
      if (same && its_own) continue;
      separated_.push_back(i);
      break;
    }
  }
}

OpRequest Call::take(const std::shared_ptr<Completions>& completions) {
  request_.keep_alive =
      std::shared_ptr<void>(new KeptStorages{std::move(storages_), device_.is_cpu(), completions},
                            [](void* kept) { release(static_cast<KeptStorages*>(kept)); });
  return std::move(request_);
}

std::vector<std::int64_t> equal_parts(std::int64_t numel, std::int32_t parts) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(parts), numel / parts);
}

}  // namespace pccl
