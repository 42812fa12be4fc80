// What a request says by ranks: checked in the numbering that its caller meant, and said in another
// one, when rank and size have changed since the caller looked. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "engine/request.h"

namespace pccl {

/// Why the ranks and lists of this request do not fit its own numbering.
[[nodiscard]] std::optional<Error> misfit(const OpRequest& request);

/// What the request of a collective says of ranks is said of the same peers in the numbering `now`.
/// False: that cannot be done, because a rank has come or the root has gone.
[[nodiscard]] bool renumber(OpRequest& request, const Numbering& now);

/// The ranks in this numbering that are members, in the order of the ring of all members.
[[nodiscard]] std::vector<std::size_t> ranks_along(const std::vector<PeerId>& ring,
                                                   const std::vector<PeerId>& numbering);

}  // namespace pccl
