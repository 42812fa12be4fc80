// Which operations without an outcome use which memory, for the question which one of them another
// has to wait for. Thousands of them may be in flight: an answer looks at those nearby. Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "base/ids.h"
#include "engine/request.h"

namespace pccl {

class MemoryUsers {
 public:
  /// `request` reads its inputs and writes its outputs, until `remove` is called with the same.
  void add(OpKey key, const OpRequest& request);
  void remove(OpKey key, const OpRequest& request);
  /// The last operation before `key` that `request` may not run beside: one that writes what
  /// `request` reads or writes, or reads what `request` writes. None: there is no such operation.
  [[nodiscard]] std::optional<OpKey> last_before(OpKey key, const OpRequest& request) const;

 private:
  /// Operations by the memory that they read, or by that which they write.
  class Uses {
   public:
    void add(OpKey key, const Buffer& memory);
    void remove(OpKey key, const Buffer& memory);
    /// The larger of `found` and the last operation before `key` whose memory overlaps this.
    [[nodiscard]] std::optional<OpKey> last_before(OpKey key, const Buffer& memory,
                                                   std::optional<OpKey> found) const;

   private:
    struct Use {
      std::uint64_t begin = 0;
      std::uint64_t end = 0;
      OpKey op;
      auto operator<=>(const Use&) const = default;
    };
    /// By the bit width of their lengths. Lengths of one width are below 2^width: uses that overlap
    /// a given memory begin in the 2^width bytes before it, or in it.
    std::map<std::uint64_t, std::set<Use>> by_width_;
  };

  Uses reads_;
  Uses writes_;
};

}  // namespace pccl
