// The plan of a transfer: which item of a shared state comes next, and from which source. Pure: the
// plan is told what is wanted, what has arrived and which source has failed; it moves no byte and
// knows no time. Items come whole and one at a time; chunks, and several sources at once, would be
// finer answers to the same questions.
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

  /// An attempt begins; of those before it stays how often each source has failed. The first source
  /// is the one that has failed least, among equals the first named.
  void want(std::vector<WantedItem> items, std::vector<PeerId> sources);
  /// The pull that is due, the same until one of the events below. nullopt: all items have
  /// arrived, or no source is left for the first of those that have not.
  [[nodiscard]] std::optional<Pull> next() const;
  /// Nothing that is wanted is missing.
  [[nodiscard]] bool complete() const { return first_ == items_.size(); }

  // Events.
  void arrived(const Digest& digest);
  /// At the pull that is due. The source is asked last from then on, and never again for this item
  /// in this attempt.
  void failed(PeerId source);

 private:
  void skip_arrived();
  void sort_sources();

  std::vector<WantedItem> items_;
  std::size_t first_ = 0;        // of items_: those before it have arrived
  std::vector<PeerId> sources_;  // whom to ask first stands first
  std::set<PeerId> tried_;       // they have failed at the first item
  std::set<Digest> arrived_;
  std::map<PeerId, std::uint32_t> failures_;
};

}  // namespace pccl
