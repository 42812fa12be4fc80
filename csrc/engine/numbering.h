// The ranks in a request: checked in the numbering in which the caller meant them, and translated
// into the present numbering if rank and size have changed since. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "engine/request.h"

namespace pccl {

/// Why the ranks and lists of this request do not fit the request's own numbering; none: they fit.
[[nodiscard]] std::optional<Error> misfit(const OpRequest& request, PeerId self);

/// Translates a collective's request into the numbering `now`, so that it names the same peers.
/// False: impossible, because `now` has a peer that the old numbering lacks, or lacks the root.
[[nodiscard]] bool renumber(OpRequest& request, const Numbering& now);

/// The ranks in this numbering that are members, in the order of the ring of all members.
[[nodiscard]] std::vector<std::size_t> ranks_along(const std::vector<PeerId>& ring,
                                                   const std::vector<PeerId>& numbering);

}  // namespace pccl
