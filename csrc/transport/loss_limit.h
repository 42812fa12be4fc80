// Whether lost packets are what limits the connections of a link. Pure: a function of what the link
// has carried.
//
// A connection that goes by losses has 1.22 packets under way by the square root of the part that
// is lost, in the mean (Mathis et al. 1997). One packet of a thousand lets a connection have a
// third of 1 Gbit/s at a round trip of 1 ms already. Most short lines lose nothing, or only what
// overfills a long queue; there the formula gives a connection many times what the line carries.
#pragma once

#include <cstdint>

namespace pccl {

class LossLimit {
 public:
  /// What a link that always had something to send has carried since the last call.
  struct Look {
    std::uint64_t busy_us = 0;
    std::uint64_t bytes = 0;       // that have arrived
    std::uint64_t sent_bytes = 0;  // with those that were sent again
    std::uint64_t resent_bytes = 0;
    std::uint64_t least_trip_us = 0;
    std::uint64_t packet_bytes = 0;  // payload of one of full size
    std::uint64_t lanes = 1;         // connections
  };
  /// Returns `limits`.
  bool look(const Look& look);
  /// Do losses limit the link, by the last seconds?
  [[nodiscard]] bool limits() const { return limits_; }

 private:
  bool limits_ = false;
  double rate_ = 0;  // bytes a microsecond; of this and the others below older ones count less
  double sent_ = 0;
  double resent_ = 0;
  std::uint64_t windows_ = 0;
  std::uint64_t busy_us_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace pccl
