// Buffers for payloads of segments, some of which are kept to be used again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace pccl {

class Buffers {
 public:
  /// At least one byte, so that it has an address. Throws std::bad_alloc.
  [[nodiscard]] std::vector<std::byte> take(std::size_t bytes) {
    std::vector<std::byte> buffer;
    if (!kept_.empty()) {
      buffer = std::move(kept_.back());
      kept_.pop_back();
    }
    buffer.resize(std::max<std::size_t>(bytes, 1));
    return buffer;
  }
  void give_back(std::vector<std::byte> buffer) {
    if (kept_.size() < kKeptMax) kept_.push_back(std::move(buffer));
  }

 private:
  static constexpr std::size_t kKeptMax = 16;
  std::vector<std::vector<std::byte>> kept_;
};

}  // namespace pccl
