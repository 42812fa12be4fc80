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

/// Adds a committed operation to those of its step. All operations of earlier steps are committed.
void add(OpSet& set, OpKey key);

/// The members of a peer group of the epoch in the order of its ring. A place that is none, or that
/// is named again, is passed over; members without a place come last.
[[nodiscard]] std::vector<PeerId> ring_of(const Epoch& epoch, std::uint32_t group);

/// The position of `peer` in its peer group; the size of the group if it is not a member.
[[nodiscard]] std::uint32_t rank_of(const std::vector<Member>& members, PeerId peer);

/// Are these two members, in one peer group? Only such two have a link.
[[nodiscard]] bool are_mates(const std::vector<Member>& members, PeerId p, PeerId q);

/// The name of a peer in logs and errors: "rank 2 (vm/4711)", with its peer group if replicas have
/// several ranks.
[[nodiscard]] std::string name_of(const std::vector<Member>& members, const Member& member);

/// A member that has joined, left or was lost.
struct Change {
  const Member* member = nullptr;
  std::string what;    // "joined", "left", "lost"
  std::string reason;  // empty: none is needed, or another rank of the replica has it
};
/// A text for each change. The ranks of a replica to which the same has happened make one text.
/// `members`: for their ranks.
[[nodiscard]] std::vector<std::string> texts_of(const std::vector<Member>& members,
                                                const std::vector<Change>& changes);

/// Texts one after the other, as long as the wire allows.
[[nodiscard]] std::string joined(const std::vector<std::string>& texts);

/// "3 members", "1 member".
[[nodiscard]] std::string count_of(std::size_t number, const char* thing);

/// Cuts a text where a word ends, at kTextBytesMax at most, the limit of the wire.
[[nodiscard]] std::string cut_text(std::string text);

}  // namespace pccl
