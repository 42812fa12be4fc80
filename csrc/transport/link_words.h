// What people are told about a link that is up and does badly: what was seen, and where to look.
#pragma once

#include <cstdint>
#include <string>

#include "transport/rate_fall.h"

namespace pccl {

[[nodiscard]] std::string slow_link_text(const RateFall::Fall& fall);
/// SmallPass. `small_packets`: those of the link's connections are small anyway.
[[nodiscard]] std::string small_pass_text(std::uint64_t for_ms, bool small_packets);

}  // namespace pccl
