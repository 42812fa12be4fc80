// What this process keeps of the fixed groups that it has closed: which calls it had completed in
// them. A member that has not closed such a group may still wait in an operation that this process
// called differently. When that member asks (ask_issued), only this record still knows the
// difference. A record goes when every other member has closed the group or is gone. Engine's
// thread only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "engine/completed.h"
#include "wire/peer_messages.h"

namespace pccl {

struct ClosedGroup {
  GroupId id;
  Completed completed;
  std::string self;                      // this rank, as texts describe it
  std::map<PeerId, std::string> others;  // the members that have not closed the group, likewise
};

class ClosedGroups {
 public:
  static constexpr std::size_t kMax = 64;  // the oldest record goes; each has kMax of Completed

  void add(ClosedGroup group) {
    if (group.others.empty()) return;
    if (groups_.size() >= kMax) groups_.pop_front();
    groups_.push_back(std::move(group));
  }
  /// If `peer` means another operation than this process has completed: says which two.
  [[nodiscard]] std::optional<std::string> difference(PeerId peer, const AskIssued& ask) const {
    const auto group = std::find_if(groups_.begin(), groups_.end(),
                                    [&](const ClosedGroup& g) { return g.id == ask.group; });
    if (group == groups_.end()) return {};
    const auto asker = group->others.find(peer);
    const OpDescriptor* mine = group->completed.find(ask.op);
    const OpDescriptor theirs = descriptor_of(ask);
    if (asker == group->others.end() || mine == nullptr || alike(*mine, theirs)) return {};
    return difference_text(asker->second, theirs, group->self, *mine);
  }
  void closed_by(PeerId peer, GroupId id) {
    drop(peer, [id](const ClosedGroup& group) { return group.id == id; });
  }
  /// The link to the peer has ended: whatever waits there fails by that.
  void link_gone(PeerId peer) {
    drop(peer, [](const ClosedGroup&) { return true; });
  }
  [[nodiscard]] std::size_t size() const { return groups_.size(); }

 private:
  template <typename Which>
  void drop(PeerId peer, Which&& which) {
    std::erase_if(groups_, [&](ClosedGroup& group) {
      if (which(group)) group.others.erase(peer);
      return group.others.empty();
    });
  }

  std::deque<ClosedGroup> groups_;
};

}  // namespace pccl
