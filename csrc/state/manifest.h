// The shared state as a list: what each tensor is and the digest of its bytes. Two peers compare
// their lists to learn what one has to fetch from the other; a root over the list is what the
// master compares.
//
// Pure. A manifest that came from the network is material to be judged: `plan` refuses one that
// does not describe the same tensors, since bytes are then written into memory of the size that we
// have.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "state/sha256.h"

namespace pccl {

struct ManifestEntry {
  std::string name;
  std::string dtype;  // as torch prints it: "torch.float32"
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;
  Digest digest{};  // state/sha256.h: hash_item of the content
  bool operator==(const ManifestEntry&) const = default;
};

using Manifest = std::vector<ManifestEntry>;  // in any order; names are unique

/// The names whose content differs, in the order of `mine`. `mismatch` names the first tensor (by
/// name) that only one of the two has, or whose dtype, shape or size differs, and says which.
[[nodiscard]] Result<std::vector<std::string>> plan(const Manifest& mine, const Manifest& theirs);

/// The root: over all that both hold in common, that is the entries in the order of their names and
/// the digest of the plain values. The order of `entries` does not count. Equal roots mean equal
/// states.
[[nodiscard]] Digest root(const Manifest& entries, const Digest& plain);

}  // namespace pccl
