// The key-value store of a run: what c10d's Store promises, as TCPStore does it. Pure: a request
// goes in, replies come out; clocks and connections are the server's. Nothing here outlives the
// master, and nothing here knows of members.
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
inline constexpr std::size_t kStoreEntryBytes = 128;       // what an entry costs beside its bytes
inline constexpr std::size_t kStoreAnswersBytesMax = 512U << 20;  // of one request
inline constexpr std::size_t kStoreWaitsMax = 1024;               // unanswered requests of one peer
inline constexpr std::size_t kStoreReplyBytesMax =
    kControlBytesMax - (1U << 20);  // payload of a reply
inline constexpr std::size_t kStoreValueBytesMax =
    kStoreReplyBytesMax - kStoreEntryBytes;  // of one value: it fits in a reply

/// Who waits: a request of a peer.
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
  bool operator==(const StoreAnswer&) const = default;
};

/// A value; used on one thread. The order of the answers follows from the requests alone.
class KeyValueStore {
 public:
  explicit KeyValueStore(std::size_t bytes_max = kStoreBytesMax,
                         std::size_t answers_bytes_max = kStoreAnswersBytesMax)
      : bytes_max_(bytes_max), answers_bytes_max_(answers_bytes_max) {}

  /// Carries out a request. Answers: its own, unless it has to wait, then those of whom it woke.
  [[nodiscard]] std::vector<StoreAnswer> request(PeerId peer, const StoreRequest& request);
  /// The time of a waiting request is over; none if it has been answered by then.
  [[nodiscard]] std::optional<StoreAnswer> expire(const Waiter& waiter);
  /// Forgets what a peer waits for; nobody is answered.
  void drop(PeerId peer);
  /// Forgets all keys. Who waits goes on waiting.
  void clear();

  [[nodiscard]] bool waits(const Waiter& waiter) const { return waiting_.contains(waiter); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  /// `missing` is one of its keys and in no entry: only its arrival can be what completes the
  /// request.
  struct Waiting {
    StoreRequest request;
    std::string missing;
    std::size_t bytes = 0;
  };

  [[nodiscard]] StoreReply apply(const StoreRequest& request);
  [[nodiscard]] StoreReply add(const StoreRequest& request);
  [[nodiscard]] StoreReply compare_set(const StoreRequest& request);
  [[nodiscard]] StoreReply put_all(const StoreRequest& request, bool append);
  [[nodiscard]] StoreReply list_keys(const StoreRequest& request) const;
  [[nodiscard]] StoreReply read(
      const StoreRequest& request) const;  // get and wait, all keys are there
  /// Its error says why the request may not wait; without one it does.
  [[nodiscard]] StoreReply wait(PeerId peer, const StoreRequest& request, std::string missing);
  [[nodiscard]] StoreReply full(const StoreRequest& request, const std::string& key) const;
  [[nodiscard]] std::optional<std::string> first_missing(const StoreRequest& request) const;
  [[nodiscard]] bool fits(const std::string& key, std::size_t value_bytes) const;
  void put(const std::string& key, Bytes value);
  void erase(const std::string& key);
  void forget(std::map<Waiter, Waiting>::iterator at);
  void wake(const std::string& key, std::vector<StoreAnswer>& answers);

  std::size_t bytes_max_;
  std::size_t answers_bytes_max_;
  std::size_t bytes_ = 0;
  std::map<std::string, Bytes, std::less<>> entries_;
  std::map<Waiter, Waiting> waiting_;
  std::multimap<std::string, Waiter, std::less<>> by_missing_;  // Waiting::missing -> who
  std::map<PeerId, std::size_t> waits_of_;
};

}  // namespace pccl::master
