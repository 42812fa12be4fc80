// What must hold in every state (safety), and in every state in which nothing can happen any more
// (liveness). Each function returns "" or a sentence.
#pragma once

#include <string>

#include "world.h"

namespace pccl::sim {

[[nodiscard]] std::string safety(const World& world);
[[nodiscard]] std::string liveness(const World& world);

/// What a core keeps beyond the limits, whatever a liar says; empty: nothing.
[[nodiscard]] std::string overfull(const World& world);

}  // namespace pccl::sim
