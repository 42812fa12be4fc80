// The desk of a run's key-value store: takes the requests of peers, and sends the answers as far as
// the peers read them. The keys are store.h's, the order of those that wait is held_requests.h's.
// The loop's thread only.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "master/connections.h"
#include "master/held_requests.h"
#include "master/store.h"
#include "transport/clock.h"

namespace pccl::master {

/// Most bytes that are queued for all peers; a reply of the store beyond it is refused.
inline constexpr std::size_t kStoreQueuedBytesMax = 1ULL << 30;
// A reply up to this size is sent in any case.
inline constexpr std::size_t kStoreSmallBytes = 4096;

class StoreDesk {
 public:
  struct Asks {
    /// On whose account a peer writes (KeyValueStore::request).
    std::function<std::string(PeerId)> owner;
    /// The peer asks on and on without reading: its connection has to be given up.
    std::function<void(PeerId, const std::string& why)> gives_up;
  };

  StoreDesk(pccl::Clock& clock, Connections& connections, Asks asks)
      : clock_(clock), connections_(connections), asks_(std::move(asks)) {}

  void request(PeerId peer, StoreRequest request);
  /// The peer has read: there is room for what it has asked for.
  void room(PeerId peer);
  /// Forgets what this peer waits for, without an answer. Its keys stay.
  void drop(PeerId peer);
  /// Forgets all keys. Waiting requests go on waiting.
  void clear() { store_.clear(); }
  /// Forgets everything, without an answer to anybody.
  void close();

 private:
  void hold(PeerId peer, StoreRequest request);
  void serve(PeerId peer, const StoreRequest& request);
  void answer(const std::vector<StoreAnswer>& answers);

  pccl::Clock& clock_;  // and not the event of that name
  Connections& connections_;
  const Asks asks_;
  KeyValueStore store_;
  HeldRequests held_;
  std::map<Waiter, std::unique_ptr<Timer>> timers_;
};

}  // namespace pccl::master
