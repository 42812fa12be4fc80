// Store requests of peers that read the answers slowly or not at all: they wait here until their
// peer has read, while its membership messages go on. Bounded. A refused request waits here too, so
// that a peer that does not read does not cost more with each request.
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
  struct Held {
    StoreRequest request;
    bool refused = false;  // there was no memory for the request: only its id is left
  };

  /// Keeps a request. False: this peer has as many here as it may have.
  [[nodiscard]] bool hold(PeerId peer, StoreRequest request) {
    Row& row = rows_[peer];
    if (row.requests.size() >= kHeldRequestsMax) return false;
    const bool refused =
        row.bytes > kHeldBytesMax || bytes_ + bytes_of(request) > kHeldBytesOfAllMax;
    if (refused) {
      const std::uint64_t id = request.id;
      request = StoreRequest{};
      request.id = id;
    }
    const std::size_t bytes = bytes_of(request);
    row.bytes += bytes;
    bytes_ += bytes;
    row.requests.push_back({std::move(request), refused});
    return true;
  }
  [[nodiscard]] bool any(PeerId peer) const { return rows_.contains(peer); }
  /// The oldest request of this peer.
  [[nodiscard]] std::optional<Held> next(PeerId peer) {
    const auto row = rows_.find(peer);
    if (row == rows_.end()) return std::nullopt;
    Held held = std::move(row->second.requests.front());
    row->second.requests.pop_front();
    const std::size_t bytes = bytes_of(held.request);
    row->second.bytes -= bytes;
    bytes_ -= bytes;
    if (row->second.requests.empty()) rows_.erase(row);
    return held;
  }
  void drop(PeerId peer) {
    const auto row = rows_.find(peer);
    if (row == rows_.end()) return;
    bytes_ -= row->second.bytes;
    rows_.erase(row);
  }

 private:
  struct Row {
    std::deque<Held> requests;
    std::size_t bytes = 0;
  };
  [[nodiscard]] static std::size_t bytes_of(const StoreRequest& request) {
    std::size_t bytes = sizeof(Held);
    for (const std::string& key : request.keys) bytes += key.size() + sizeof(std::string);
    for (const Bytes& value : request.values) bytes += value.size() + sizeof(Bytes);
    return bytes;
  }

  std::map<PeerId, Row> rows_;
  std::size_t bytes_ = 0;
};

}  // namespace pccl::master
