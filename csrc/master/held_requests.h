// Store requests of peers that do not read, or read slowly, what they have asked for: they wait
// here until their peer has read, while its membership messages go on. Bounded.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "base/ids.h"
#include "wire/messages.h"

namespace pccl::master {

inline constexpr std::size_t kHeldRequestsMax = 1024;           // of one peer
inline constexpr std::size_t kHeldBytesMax = kControlBytesMax;  // of one peer, and 1 request
inline constexpr std::size_t kHeldBytesOfAllMax = 256U << 20;

class HeldRequests {
 public:
  /// False: there is no room for it.
  [[nodiscard]] bool hold(PeerId peer, StoreRequest request) {
    Row& row = rows_[peer];
    const std::size_t bytes = bytes_of(request);
    if (row.requests.size() >= kHeldRequestsMax || row.bytes > kHeldBytesMax ||
        bytes_ + bytes > kHeldBytesOfAllMax) {
      if (row.requests.empty()) rows_.erase(peer);
      return false;
    }
    row.bytes += bytes;
    bytes_ += bytes;
    row.requests.push_back(std::move(request));
    return true;
  }
  [[nodiscard]] bool any(PeerId peer) const { return rows_.contains(peer); }
  /// The oldest one of this peer.
  [[nodiscard]] std::optional<StoreRequest> next(PeerId peer) {
    const auto row = rows_.find(peer);
    if (row == rows_.end()) return std::nullopt;
    StoreRequest request = std::move(row->second.requests.front());
    row->second.requests.pop_front();
    const std::size_t bytes = bytes_of(request);
    row->second.bytes -= bytes;
    bytes_ -= bytes;
    if (row->second.requests.empty()) rows_.erase(row);
    return request;
  }
  void drop(PeerId peer) {
    const auto row = rows_.find(peer);
    if (row == rows_.end()) return;
    bytes_ -= row->second.bytes;
    rows_.erase(row);
  }

 private:
  struct Row {
    std::deque<StoreRequest> requests;
    std::size_t bytes = 0;
  };
  [[nodiscard]] static std::size_t bytes_of(const StoreRequest& request) {
    std::size_t bytes = sizeof(StoreRequest);
    for (const std::string& key : request.keys) bytes += key.size() + sizeof(std::string);
    for (const Bytes& value : request.values) bytes += value.size() + sizeof(Bytes);
    return bytes;
  }

  std::map<PeerId, Row> rows_;
  std::size_t bytes_ = 0;
};

}  // namespace pccl::master
