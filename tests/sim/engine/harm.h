// What goes wrong at one member of a walk, and between two: the same in a run and without one.
#pragma once

#include <memory>
#include <vector>

#include "member.h"

namespace pccl::sim {

/// One that lives and has its links; null: there is none.
[[nodiscard]] Member* any_of(const std::vector<std::unique_ptr<Member>>& members, Random& chance);

/// `what`: 0 to 13, of which some do nothing.
void harm(Member& one, std::uint64_t what, Cables& cables, Book& book);

}  // namespace pccl::sim
