// The contributors of a step: the ranks whose contributions are in all operations of the step that
// were committed. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace pccl {

class Contributors {
 public:
  /// An operation was committed with contributions of these ranks. True: a rank is no contributor
  /// of the step any more, or this was the first operation of the step.
  [[nodiscard]] bool note(std::vector<std::uint32_t> ranks) {
    std::sort(ranks.begin(), ranks.end());  // they are in the order of the ring
    if (ranks_ == ranks) return false;
    if (!ranks_) {
      ranks_ = std::move(ranks);
    } else {
      std::erase_if(*ranks_, [&](std::uint32_t rank) {
        return !std::binary_search(ranks.begin(), ranks.end(), rank);
      });
    }
    return true;
  }
  /// The step ends, with so many ranks; 0: this peer was not admitted yet.
  void end_step(std::size_t size) { size_ = size; }
  void begin_step() { ranks_.reset(); }

  /// Ascending; none: no operation has been committed in this step.
  [[nodiscard]] const std::optional<std::vector<std::uint32_t>>& so_far() const { return ranks_; }
  /// Ranks that contributed to the step that has ended; all ranks, if the step had no operation.
  [[nodiscard]] std::vector<std::uint32_t> of_step() const {
    if (ranks_) return *ranks_;
    std::vector<std::uint32_t> all(size_);
    std::iota(all.begin(), all.end(), 0U);
    return all;
  }

 private:
  std::optional<std::vector<std::uint32_t>> ranks_;
  std::size_t size_ = 0;
};

}  // namespace pccl
