// What one end of a relayed link seals for the other end, so that the peer in between sees sizes
// alone, and can change, repeat, reorder, turn back or leave out nothing unseen. The keys are those
// of trust/route_keys.h, new ones for each link.
//
// Messages and small segments travel on one way in one order: they share numbers, and each is
// expected to be the next one. Large segments have no order: each number comes once, and few
// numbers are late, not for long. A last message or segment that is left out shows when the other
// end closes the link, or when its operation gets no further.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/handle.h"
#include "transport/relay_message.h"
#include "transport/transport.h"
#include "trust/route_keys.h"
#include "trust/sealer.h"

namespace pccl {

/// Which numbers of a sequence without order have come.
class Arrivals {
 public:
  /// Can this number come now? "": yes; else what the peer in between has done.
  [[nodiscard]] std::string check(std::uint64_t number) const;
  /// That number has come, with so many bytes.
  void take(std::uint64_t number, std::size_t bytes, std::uint64_t now_ms);
  /// Is a number late for so long, and after so much else, that it will not come any more?
  [[nodiscard]] bool lost_one(std::uint64_t now_ms) const;

 private:
  struct Late {
    std::uint64_t since_ms;
    std::uint64_t bytes_before;
  };
  std::uint64_t next_ = 0;              // above all that have come
  std::map<std::uint64_t, Late> late_;  // below it, and not here
  std::uint64_t bytes_ = 0;
};

class RelaySeal {
 public:
  /// One end, `self`, of the link to `other` over `via`. `identity` outlives it; `fresh`: of this
  /// link, as `session`.
  RelaySeal(const KeyPair& identity, PeerId self, std::uint64_t session, const Secret& fresh,
            const Handle& other, PeerId via);

  [[nodiscard]] std::uint64_t mine() const { return own_.session; }
  /// Session number of the other end; 0: not known yet.
  [[nodiscard]] std::uint64_t theirs() const { return other_.session; }

  // Opening. The keys change with what the other end says of itself, until `settle`.
  [[nodiscard]] RelayOpening opening() const;
  [[nodiscard]] Error hear(std::uint64_t session, const RelayOpening& said);
  /// Does the other end have the same keys?
  [[nodiscard]] bool proven_by(const RelayOpening& said) const;
  [[nodiscard]] bool has_keys() const { return keys_.has_value(); }
  /// The link is up: the secrets that made the keys are overwritten.
  void settle();

  /// A whole message for the other end.
  [[nodiscard]] std::vector<std::byte> seal(RelayKind kind, std::span<const std::byte> plain);
  /// What the other end has sealed; an error says what the peer in between has done with it.
  [[nodiscard]] Result<std::vector<std::byte>> open(const RelayMessage& message);
  /// The same without regard to order, for a link that takes nothing else any more.
  [[nodiscard]] std::optional<std::vector<std::byte>> open_late(const RelayMessage& message);

  /// The header that goes out; the payload is sealed into `into`.
  [[nodiscard]] SegmentHeader seal(const SegmentHeader& header, const std::byte* payload,
                                   std::byte* into);
  /// The header that was sealed, without its route; the payload is opened in its place.
  [[nodiscard]] Result<SegmentHeader> open(const SegmentHeader& header, std::byte* payload,
                                           std::uint64_t now_ms);

 private:
  /// Both directions, once there are keys.
  struct Ways {
    explicit Ways(const RouteKeys& keys)
        : ordered_out(keys.cipher, keys.ordered_out),
          loose_out(keys.cipher, keys.loose_out),
          ordered_in(keys.cipher, keys.ordered_in),
          loose_in(keys.cipher, keys.loose_in) {}
    Sealer ordered_out, loose_out;
    Opener ordered_in, loose_in;
    std::uint64_t next_in = 0;  // of what has an order
    Arrivals arrivals;          // of what has none
  };

  const KeyPair& identity_;
  std::optional<KeyPair> fresh_;  // until the link is up
  RouteEnd own_;
  RouteEnd other_;
  PeerId via_;
  std::size_t heard_ = 0;  // other ends
  std::optional<RouteKeys> keys_;
  std::optional<Ways> ways_;
};

}  // namespace pccl
