// Decides which receive takes which send: the rules of point-to-point calls, and nothing else.
// Pure: no memory of tensors, no links, no clock. One for each epoch of a group; point_to_point.h
// calls it.
//
// A sender numbers all its sends to one receiver in one sequence, whatever their tags. A receive
// takes the send with its tag that has the lowest number and has not been taken. A receive from any
// source takes, of these sends of all sources, the one that came first. Frames of sends may come
// out of order (over a third peer, or for a group that was not known here yet): a send is not taken
// before all sends with lower numbers have come.
#pragma once

#include <cstdint>
#include <list>
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
    ReceiveId id = 0;
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

  // Frames of a sender; `settle` returns what follows from them.
  /// The first frame of a send. The send can be taken once it is `ready`.
  [[nodiscard]] News arrive(const SendName& name);
  void ready(const SendName& name);
  /// The sender has given the send up, before or after it came. False: a receive has taken it
  /// already.
  [[nodiscard]] bool withdraw(const SendName& name);
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
    std::set<std::uint64_t> beyond;       // numbers from `known` on that came
    std::set<std::uint64_t> withdrawn;    // given up before they came
  };
  using Sends = std::map<std::uint64_t, Send>;

  static void advance(Sender& sender);
  [[nodiscard]] static bool takes(const Receive& receive, PeerId peer);
  [[nodiscard]] static Sends::iterator first(Sender& sender, std::uint64_t tag);

  std::map<PeerId, Sender> senders_;
  std::list<Receive> receives_;  // in the order in which they were posted
  std::uint64_t order_ = 0;
};

}  // namespace pccl
