// How a program asks that the float32 values of its all-reduces are sent as fewer bits: by name, of
// a group, or of the next all-reduce of a thread (c10d's arguments have no place for it).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "base/quantisation.h"

namespace pccl {

/// Throws ValueError with the names that there are.
[[nodiscard]] Quantisation quantisation_of(const std::string& name);

/// Of one call.
struct QuantisedCall {
  std::optional<Quantisation> how;  // nothing: the group's
  at::Tensor sum_error;             // OpRequest::sum_error; undefined: nobody wants it
};

/// Of the next all-reduce that this thread calls; the call takes it away.
void quantise_next_call(QuantisedCall call);
[[nodiscard]] QuantisedCall take_quantised_call();

/// A float32 tensor on the CPU as other ranks get it when it is a contribution to a quantised
/// all-reduce: quantised, and back. A new tensor.
[[nodiscard]] at::Tensor as_sent(const at::Tensor& tensor, Quantisation how);

}  // namespace pccl
