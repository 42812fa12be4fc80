// See ring.h. Source: as ring_all_reduce.cpp. Steps of each half: n - 1; each rank sends all parts
// but one.
#include "collectives/ring.h"

namespace pccl {
namespace {

/// The part that the rank so many places before this one sums.
Part part_before(const RingOfParts& ring, std::uint32_t distance) {
  const auto size = static_cast<std::uint32_t>(ring.parts.size());
  return ring.parts[before(ring.own, distance, size)];
}

}  // namespace

std::optional<std::uint32_t> reduce_half(Builder& b, const RingOfParts& ring, RingStep first,
                                         Builder::Last last) {
  const auto size = static_cast<std::uint32_t>(ring.parts.size());
  // The first send is of the own input; each later one is the received part, as it comes.
  Range sends = input(part_before(ring, 1));
  std::optional<std::uint32_t> received;
  for (std::uint32_t s = 0; s + 1 < size; ++s) {
    const std::uint32_t channel = first.channel + s;
    if (sends.bytes > 0) {
      b.send(ring.next, channel, sends, received ? following(*received) : Order{});
    }
    const Part p = part_before(ring, s + 2);
    sends = output(p);
    received.reset();
    if (p.bytes == 0) continue;
    received =
        b.recv_reduce(ring.previous, channel, input(p), sends, Builder::Place::received_second,
                      s + 2 == size ? last : Builder::Last::no);
    b.set_turn(*received, first.turn + s);
  }
  return received;
}

void gather_half(Builder& b, const RingOfParts& ring, RingStep first, Order order) {
  const auto size = static_cast<std::uint32_t>(ring.parts.size());
  Range sends = output(part_before(ring, 0));
  for (std::uint32_t s = 0; s + 1 < size; ++s) {
    const std::uint32_t channel = first.channel + s;
    if (sends.bytes > 0) b.send(ring.next, channel, sends, order);
    const Part p = part_before(ring, s + 1);
    sends = output(p);
    if (p.bytes == 0) continue;
    const std::uint32_t received = b.recv(ring.previous, channel, sends);
    b.set_turn(received, first.turn + s);
    order = following(received);
  }
}

}  // namespace pccl
