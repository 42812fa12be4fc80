// All ways to quantise, for tests that go through each of them.
#pragma once

#include <array>

#include "base/quantisation.h"

namespace pccl {

inline constexpr std::array kQuantisations = {
    Quantisation::int8_minmax, Quantisation::int8_zero_point,
    Quantisation::int4_minmax, Quantisation::f16,
    Quantisation::bf16,        Quantisation::f8_e4m3,
    Quantisation::f8_e5m2};
static_assert(kQuantisations.size() == static_cast<std::size_t>(kQuantisationLast));

}  // namespace pccl
