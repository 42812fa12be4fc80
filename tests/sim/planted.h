// Planted bugs: proof that the simulator would find them. The cores know none of them:
// planted.patch puts them into a copy, for the simulator's second build (PCCL_PLANTED_BUGS), which
// breaks one rule at a time. In the first one the set is empty and `planted()` false.
#pragma once

#include <set>
#include <string>
#include <string_view>

namespace pccl {

#ifdef PCCL_PLANTED_BUGS
using PlantedBugs = std::set<std::string, std::less<>>;
inline bool planted(const PlantedBugs& bugs, std::string_view name) { return bugs.contains(name); }
#else
struct PlantedBugs {
  bool operator==(const PlantedBugs&) const = default;
};
constexpr bool planted(const PlantedBugs&, std::string_view) { return false; }
#endif

}  // namespace pccl
