// See quantise.h.
#include "torch/quantise.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <utility>
#include <vector>

#include "kernels/quantise.h"

namespace pccl {
namespace {

thread_local QuantisedCall next_call;

}  // namespace

Quantisation quantisation_of(const std::string& name) {
  std::string names;
  for (int i = 0; i <= static_cast<int>(kQuantisationLast); ++i) {
    const auto how = static_cast<Quantisation>(i);
    if (quantisation_name(how) == name) return how;
    names += (i == 0 ? "" : ", ") + std::string(quantisation_name(how));
  }
  TORCH_CHECK_VALUE(false, "quantise is '", name, "'; expected one of ", names);
}

void quantise_next_call(QuantisedCall call) { next_call = std::move(call); }

QuantisedCall take_quantised_call() { return std::exchange(next_call, {}); }

at::Tensor as_sent(const at::Tensor& tensor, Quantisation how) {
  TORCH_CHECK_TYPE(tensor.is_cpu() && tensor.scalar_type() == at::kFloat,
                   "pccl: expected a float32 tensor on the CPU, got ", tensor.scalar_type(), " on ",
                   tensor.device());
  const at::Tensor values = tensor.contiguous();
  if (how == Quantisation::none) return values.clone();
  at::Tensor result = at::empty_like(values);
  const auto count = static_cast<std::size_t>(values.numel());
  std::vector<std::byte> codes(quantised_bytes(count, how));
  quantise(codes.data(), values.const_data_ptr<float>(), count, how);
  dequantise(result.mutable_data_ptr<float>(), codes.data(), count, how);
  return result;
}

}  // namespace pccl
