// Small functions about members, sets of operations and names that both cores use. Pure.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "wire/messages.h"

namespace pccl {

[[nodiscard]] inline bool contains(const std::vector<Member>& members, PeerId peer) {
  return std::any_of(members.begin(), members.end(),
                     [&](const Member& m) { return m.peer() == peer; });
}

[[nodiscard]] inline std::vector<PeerId> ids_of(const std::vector<Member>& members) {
  std::vector<PeerId> ids;
  ids.reserve(members.size());
  for (const Member& m : members) ids.push_back(m.peer());
  return ids;
}

/// Has this operation been decided?
[[nodiscard]] inline bool contains(const OpSet& set, OpKey key) {
  return key < set.below || std::binary_search(set.also.begin(), set.also.end(), key);
}

/// The position of `peer` in its peer group; the size of the group if it is not a member.
[[nodiscard]] std::uint32_t rank_of(const std::vector<Member>& members, PeerId peer);

/// The name of a peer in logs and errors: "rank 2 (00..1f)", with its peer group if replicas have
/// several ranks.
[[nodiscard]] std::string name_of(const std::vector<Member>& members, const Member& member);

/// "3 members", "1 member".
[[nodiscard]] std::string count_of(std::size_t number, const char* thing);

/// Cuts a text at kTextBytesMax, the limit of the wire.
[[nodiscard]] std::string cut_text(std::string text);

}  // namespace pccl
