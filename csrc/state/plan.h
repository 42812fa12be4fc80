// The plan of a transfer: the next item of a shared state, and the source to pull it from. Pure:
// the caller reports the wanted items, the arrivals and the sources that failed; the plan moves no
// byte and knows no time. Items come whole and one at a time; a later plan may use chunks and
// several sources at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "state/sha256.h"

namespace pccl {

/// An item of another peer's snapshot.
struct WantedItem {
  std::uint32_t index = 0;  // 0: the manifest
  Digest digest{};
  std::optional<std::uint64_t> bytes;  // nullopt: the source tells (of the manifest)
};

class TransferPlan {
 public:
  struct Pull {
    WantedItem item;
    PeerId source;
  };

  /// Begins an attempt. From earlier attempts the plan keeps how often each source has failed. The
  /// first source is the one that has failed least often, among equals the first in the list.
  void want(std::vector<WantedItem> items, std::vector<PeerId> sources);
  /// The pull that is due, the same until one of the events below. nullopt: all items have
  /// arrived, or no source is left for the first of those that have not.
  [[nodiscard]] std::optional<Pull> next() const;
  /// Have all wanted items arrived?
  [[nodiscard]] bool complete() const { return first_ == items_.size(); }

  // Events.
  void arrived(const Digest& digest);
  /// The source has failed at the pull that is due. From then on it is asked last, and not again
  /// for this item in this attempt.
  void failed(PeerId source);

 private:
  void skip_arrived();
  void sort_sources();

  std::vector<WantedItem> items_;
  std::size_t first_ = 0;        // index in items_: the items before it have arrived
  std::vector<PeerId> sources_;  // in the order in which they are asked
  std::set<PeerId> tried_;       // sources that have failed at the first missing item
  std::set<Digest> arrived_;
  std::map<PeerId, std::uint32_t> failures_;
};

}  // namespace pccl
