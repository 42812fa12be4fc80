// What is known of the way that a connection's bytes take.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pccl {

/// Round trips below are those of a short line, which one connection fills.
inline constexpr std::uint64_t kLongTripUs = 2000;
/// From here on BBR is worth its price, and connections that go by losses are held (LinePace).
inline constexpr std::uint64_t kLongLineUs = 5000;

/// As the kernel tells it of one TCP connection; 0: not known.
struct Line {
  std::uint32_t packet_bytes = 0;   // payload of one of full size
  std::uint64_t least_trip_us = 0;  // there and back where no queue delays
  std::uint64_t trip_us = 0;        // there and back now
  std::uint64_t unsent_bytes = 0;   // taken by the kernel, and still to be sent
  std::uint64_t arrived_bytes = 0;  // also those behind one that is lost
  std::uint64_t sent_bytes = 0;     // with those that were sent again
  std::uint64_t resent_bytes = 0;
  std::uint64_t delivered_rate = 0;  // bytes a second, of the newest measurement of the kernel
  bool by_model = false;             // BBR sends: as fast as bytes arrive, whatever is lost
};

/// Is the queue of a line long: a quarter of the shortest round trip, and 5 ms at least?
[[nodiscard]] constexpr bool queues(std::uint64_t least_trip_us, std::uint64_t trip_us) {
  return trip_us > least_trip_us + std::max<std::uint64_t>(least_trip_us / 4, 5000);
}

}  // namespace pccl
