// The key-value store of a run, which behaves as c10d's TCPStore. Pure: a request goes in, replies
// come out; clocks and connections are the server's. The keys are lost with the master. Knows
// nothing of members.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "wire/messages.h"

namespace pccl::master {

inline constexpr std::size_t kStoreBytesMax = 256U << 20;  // keys, values and waits, all peers
inline constexpr std::size_t kStoreBytesOfPeerMax = kStoreBytesMax / 2;  // what one of them holds
inline constexpr std::size_t kStoreKeysOfPeerMax = 65536;
// Ids cost nothing, so what the peers of one owner (a token, or a network) hold has a limit too.
// When it is reached, a peer that holds little goes on, up to another.
inline constexpr std::size_t kStoreBytesOfOwnerMax = kStoreBytesMax / 2;
inline constexpr std::size_t kStoreKeysOfOwnerMax = 4 * kStoreKeysOfPeerMax;
inline constexpr std::size_t kStoreLittleBytes = 32U << 10;  // of a peer; with 4096 peers a half
inline constexpr std::size_t kStoreLittleKeys = 64;
inline constexpr std::size_t kStoreBytesOfLittleMax = kStoreBytesMax / 4 * 3;  // of an owner
inline constexpr std::size_t kStoreEntryBytes = 128;  // memory of an entry beside its bytes
inline constexpr std::size_t kStoreAnswersBytesMax = 512U << 20;  // of one request
inline constexpr std::size_t kStoreWaitsMax = 1024;               // unanswered requests of one peer
// Payload of a reply.
inline constexpr std::size_t kStoreReplyBytesMax = kControlBytesMax - (1U << 20);
// Of one value: it fits in a reply.
inline constexpr std::size_t kStoreValueBytesMax = kStoreReplyBytesMax - kStoreEntryBytes;

/// A request of a peer that waits.
struct Waiter {
  PeerId peer;
  std::uint64_t request = 0;
  auto operator<=>(const Waiter&) const = default;
};

/// A reply for which this master has no memory now.
[[nodiscard]] StoreReply no_room(std::uint64_t request, const std::string& why);
[[nodiscard]] std::size_t value_bytes(const StoreReply& reply);

struct StoreAnswer {
  Waiter to;
  StoreReply reply;
  std::optional<StoreRequest> waited = {};  // the request, where it has waited for a key
  bool operator==(const StoreAnswer&) const = default;
};

/// Used on one thread. The order of the answers follows from the requests alone.
class KeyValueStore {
 public:
  explicit KeyValueStore(std::size_t bytes_max = kStoreBytesMax,
                         std::size_t answers_bytes_max = kStoreAnswersBytesMax,
                         std::size_t keys_of_peer_max = kStoreKeysOfPeerMax)
      : bytes_max_(bytes_max),
        bytes_of_peer_max_(bytes_max / (kStoreBytesMax / kStoreBytesOfPeerMax)),
        keys_of_peer_max_(keys_of_peer_max),
        keys_of_owner_max_(keys_of_peer_max * (kStoreKeysOfOwnerMax / kStoreKeysOfPeerMax)),
        answers_bytes_max_(answers_bytes_max) {}

  /// Carries out a request. Returns its own answer, unless the request has to wait, then the
  /// answers to the waiting requests that it completes.
  /// `owner`: on whose account the peer holds what it writes; empty: on its own.
  [[nodiscard]] std::vector<StoreAnswer> request(PeerId peer, const StoreRequest& request,
                                                 const std::string& owner = {});
  /// A waiting request has timed out; returns the answer, none if it has been answered before.
  [[nodiscard]] std::optional<StoreAnswer> expire(const Waiter& waiter);
  /// Forgets the waiting requests of a peer, without an answer.
  void drop(PeerId peer);
  /// Forgets all keys. Waiting requests go on waiting.
  void clear();

  [[nodiscard]] bool waits(const Waiter& waiter) const { return waiting_.contains(waiter); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  /// `missing` is a key of the request that does not exist: the request cannot be complete before
  /// this key arrives.
  struct Waiting {
    StoreRequest request;
    std::string missing;
    std::size_t bytes = 0;
  };

  /// The last peer that has written the value holds it.
  struct Entry {
    Bytes value;
    PeerId holder;
  };
  /// What a peer, or all peers of an owner, hold, with their requests that wait.
  struct Held {
    std::size_t bytes = 0;
    std::size_t keys = 0;
    std::string owner = {};  // of a peer
  };

  [[nodiscard]] StoreReply apply(PeerId peer, const StoreRequest& request);
  [[nodiscard]] StoreReply add(PeerId peer, const StoreRequest& request);
  [[nodiscard]] StoreReply compare_set(PeerId peer, const StoreRequest& request);
  [[nodiscard]] StoreReply put_all(PeerId peer, const StoreRequest& request, bool append);
  [[nodiscard]] StoreReply list_keys(const StoreRequest& request) const;
  [[nodiscard]] StoreReply read(
      const StoreRequest& request) const;  // get and wait, when all keys exist
  /// Lets a request wait; an error says why it may not.
  [[nodiscard]] StoreReply wait(PeerId peer, const StoreRequest& request, std::string missing);
  [[nodiscard]] StoreReply full(PeerId peer, const StoreRequest& request,
                                const std::string& key) const;
  [[nodiscard]] std::optional<std::string> first_missing(const StoreRequest& request) const;
  [[nodiscard]] Held held_by(PeerId peer) const;
  [[nodiscard]] Held held_by_owner_of(PeerId peer) const;
  [[nodiscard]] bool fits(PeerId peer, const std::string& key, std::size_t value_bytes) const;
  [[nodiscard]] std::string owner_of(PeerId peer) const;
  /// May a peer hold so much more? `all`: what all peers hold.
  [[nodiscard]] bool may_hold(std::size_t all, Held peer, Held owner, std::size_t bytes,
                              std::size_t keys) const;
  void let_wait(PeerId peer, const StoreRequest& request, std::string missing, std::size_t bytes);
  void take(PeerId peer, std::size_t bytes, std::size_t keys);
  void give_back(PeerId peer, std::size_t bytes, std::size_t keys);
  void put(PeerId peer, const std::string& key, Bytes value);
  void erase(const std::string& key);
  void forget(std::map<Waiter, Waiting>::iterator at);
  void wake(const std::string& key, std::vector<StoreAnswer>& answers);

  std::size_t bytes_max_;
  std::size_t bytes_of_peer_max_;
  std::size_t keys_of_peer_max_;
  std::size_t keys_of_owner_max_;
  std::size_t answers_bytes_max_;
  std::size_t bytes_ = 0;
  std::map<std::string, Entry, std::less<>> entries_;
  std::map<PeerId, Held> held_;
  std::map<std::string, Held> held_by_owner_;
  PeerId asking_;  // the peer of the newest request, and its owner
  std::string owner_;
  std::map<Waiter, Waiting> waiting_;
  std::multimap<std::string, Waiter, std::less<>> by_missing_;  // Waiting::missing -> its requests
  std::map<PeerId, std::size_t> waits_of_;
};

}  // namespace pccl::master
