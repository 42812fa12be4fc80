// Counts the data that this process has sent to a peer and that the peer cannot use yet. It is
// bounded for each peer over all groups (flow.h, point_to_point.h), because the peer keeps it in
// memory. Data of a fixed group that is closed here count until the peer says that it does not keep
// them any more. Counts alone; flow.h sends its questions. Engine's thread only.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "wire/peer_messages.h"

namespace pccl {

struct Window {
  std::uint64_t ungranted_bytes = 0;  // of operations that are not issued there
  std::uint64_t eager_sends = 0;      // small sends that are not received there
  std::uint64_t announced_sends = 0;  // sends that are announced, and for which no receive is there
  bool operator==(const Window&) const = default;
};

/// In a Grant, as `issued`: the sender of the Grant has closed the group. In a Want, as `op`: the
/// sender of the Want waits for such a Grant.
inline constexpr OpKey kGroupClosed{~0ULL, ~0ULL};

class Windows {
 public:
  /// Data of a group closed here that one peer still keeps.
  struct Rest {
    EpochId epoch;
    std::map<OpKey, std::uint64_t> ungranted;
    std::vector<std::uint64_t> eager_sends;  // their indexes
  };

  [[nodiscard]] Window& of(PeerId peer) { return windows_[peer]; }
  [[nodiscard]] Rest& left_behind(PeerId peer, GroupId group) { return rests_[{peer, group}]; }

  /// What the peer has to be asked, so that it reports when it keeps no more data of this closed
  /// group.
  [[nodiscard]] std::vector<Want> questions(PeerId peer, GroupId group) const {
    std::vector<Want> wants;
    const auto rest = rests_.find({peer, group});
    if (rest != rests_.end()) add_questions(wants, rest);
    return wants;
  }
  /// The same, of all closed groups.
  [[nodiscard]] std::vector<Want> questions(PeerId peer) const {
    std::vector<Want> wants;
    for (auto rest = rests_.lower_bound({peer, GroupId{}});
         rest != rests_.end() && rest->first.first == peer; ++rest) {
      add_questions(wants, rest);
    }
    return wants;
  }
  /// For a group that is closed here.
  void granted(PeerId peer, const Grant& grant) {
    const auto rest = rests_.find({peer, grant.group});
    if (rest == rests_.end()) return;
    Window& window = windows_[peer];
    auto& ungranted = rest->second.ungranted;
    while (!ungranted.empty() && ungranted.begin()->first < grant.issued) {
      window.ungranted_bytes -= ungranted.begin()->second;
      ungranted.erase(ungranted.begin());
    }
    if (grant.issued == kGroupClosed) {
      window.eager_sends -= std::exchange(rest->second.eager_sends, {}).size();
    }
    forget_empty(rest);
  }
  /// The peer is gone, or has closed the group: it keeps no data of the group any more.
  void forget(PeerId peer, GroupId group) {
    const auto rest = rests_.find({peer, group});
    if (rest != rests_.end()) forget(rest);
    std::erase_if(windows_, [](const auto& entry) { return entry.second == Window{}; });
  }
  /// The peer is gone.
  void forget(PeerId peer) {
    auto rest = rests_.lower_bound({peer, GroupId{}});
    while (rest != rests_.end() && rest->first.first == peer) rest = forget(rest);
    std::erase_if(windows_, [](const auto& entry) { return entry.second == Window{}; });
  }
  /// The small send of this index, of a group that is closed here, has been received.
  void received(PeerId peer, GroupId group, std::uint64_t index) {
    const auto rest = rests_.find({peer, group});
    if (rest == rests_.end() || std::erase(rest->second.eager_sends, index) == 0) return;
    --windows_[peer].eager_sends;
    forget_empty(rest);
  }

 private:
  using Rests = std::map<std::pair<PeerId, GroupId>, Rest>;
  Rests::iterator forget(Rests::iterator rest) {
    Window& window = windows_[rest->first.first];
    for (const auto& [op, bytes] : rest->second.ungranted) window.ungranted_bytes -= bytes;
    window.eager_sends -= rest->second.eager_sends.size();
    return rests_.erase(rest);
  }
  static void add_questions(std::vector<Want>& wants, Rests::const_iterator rest) {
    const auto& [whose, left] = *rest;
    const auto want = [&](OpKey op) { wants.push_back({whose.second, left.epoch, op}); };
    if (!left.ungranted.empty()) want(left.ungranted.rbegin()->first);
    if (!left.eager_sends.empty()) want(kGroupClosed);
  }
  void forget_empty(Rests::iterator rest) {
    if (rest->second.ungranted.empty() && rest->second.eager_sends.empty()) rests_.erase(rest);
  }

  std::unordered_map<PeerId, Window> windows_;
  Rests rests_;
};

}  // namespace pccl
