// Decides which receive takes which send: the rules of point-to-point calls, and nothing else.
// Pure: no memory of tensors, no links, no clock. One for each epoch of a group; point_to_point.h
// calls it.
//
// A sender numbers all its sends to one receiver in one sequence, whatever their tags. A receive
// takes the send with its tag that has the lowest number and has not been taken. A receive from any
// source takes, of these sends of all sources, the one that came first. Frames of sends may come
// out of order (over a third peer, or for a group that was not known here yet): a send is not taken
// before all sends with lower numbers have come. Sends and receives are found by their tags, so
// that thousands of other tags cost nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/ids.h"

namespace pccl {

/// The name of one send, the same at both sides.
struct SendName {
  PeerId peer;  // the peer at the other end
  std::uint64_t tag = 0;
  std::uint64_t index = 0;  // among all sends of the sender to this receiver in the epoch
  auto operator<=>(const SendName&) const = default;
};

class Matcher {
 public:
  using ReceiveId = std::uint64_t;
  struct Receive {
    ReceiveId id = 0;  // grows from one receive that is posted to the next
    std::uint64_t tag = 0;
    std::optional<PeerId> from;  // nothing: any of `among`
    std::shared_ptr<const std::vector<PeerId>> among;
  };
  struct Pair {
    ReceiveId receive = 0;
    SendName send;
    bool operator==(const Pair&) const = default;
  };
  enum class News : std::uint8_t {
    fresh,
    withdrawn,  // its sender has given it up: no receive takes it
    again       // the send has come before: its sender breaks the protocol
  };
  /// Of one sender: sends that were withdrawn before they came, and of which the frames may still
  /// come. Of older ones it is not known any more that they have not come.
  static constexpr std::size_t kWithdrawnMax = 1024;

  // Frames of a sender; `settle` returns what follows from them.
  /// The first frame of a send. The send can be taken once it is `ready`.
  [[nodiscard]] News arrive(const SendName& name);
  void ready(const SendName& name);
  /// The sender has given the send up, before or after it came. False: a receive has taken it
  /// already.
  [[nodiscard]] bool withdraw(const SendName& name);
  /// Forgets the oldest of more than kWithdrawnMax withdrawn sends, and returns its number.
  [[nodiscard]] std::optional<std::uint64_t> forget_withdrawn(PeerId peer);
  /// The pairs of send and receive that follow from the frames of this sender.
  [[nodiscard]] std::vector<Pair> settle(PeerId peer);

  [[nodiscard]] std::optional<Pair> post(Receive receive);
  /// All sends of this sender below number `end` have come and can be taken, or were withdrawn.
  [[nodiscard]] bool all_ready(PeerId peer, std::uint64_t end) const;
  /// The lowest number of this sender that no receive has taken.
  [[nodiscard]] std::uint64_t untaken(PeerId peer) const;
  /// Removes a receive that is not paired.
  void cancel(ReceiveId id);

 private:
  struct Send {
    std::uint64_t tag = 0;
    std::uint64_t order = 0;  // of arrival, among all senders
    bool ready = false;
  };
  struct Sender {
    std::uint64_t known = 0;              // all numbers below have come or were withdrawn
    std::map<std::uint64_t, Send> sends;  // not taken
    std::map<std::uint64_t, std::set<std::uint64_t>> numbers;  // of `sends`, by their tags
    std::set<std::uint64_t> beyond;                            // numbers from `known` on that came
    std::set<std::uint64_t> withdrawn;                         // given up before they came
    std::uint64_t forgotten = 0;   // what comes of numbers below may be of withdrawn sends
    std::set<std::uint64_t> news;  // tags of which a send may have become the next to take
  };
  using Sends = std::map<std::uint64_t, Send>;
  struct Awaited {  // by a receive that waits
    std::optional<PeerId> from;
    std::uint64_t tag = 0;
    auto operator<=>(const Awaited&) const = default;
  };

  static void advance(Sender& sender);
  static void erase(Sender& sender, Sends::iterator send);
  [[nodiscard]] static bool takes(const Receive& receive, PeerId peer);
  [[nodiscard]] static Sends::iterator first(Sender& sender, std::uint64_t tag);
  [[nodiscard]] std::optional<ReceiveId> next_receive(PeerId peer, std::uint64_t tag) const;

  std::map<PeerId, Sender> senders_;
  std::map<ReceiveId, Receive> receives_;           // in the order in which they were posted
  std::map<Awaited, std::set<ReceiveId>> waiting_;  // the same
  std::uint64_t order_ = 0;
};

}  // namespace pccl
