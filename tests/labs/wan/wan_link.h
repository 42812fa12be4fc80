// A transmitter with a rate and a bounded drop-tail queue in front of it, simulated by arithmetic
// alone: it remembers when it will have sent all that it holds.
#pragma once

#include <algorithm>
#include <cstdint>

#include "wan_packets.h"

constexpr Nanos kMillisecond = 1e6, kDropped = -1;

class Link {
 public:
  void configure(double mbit, double queue_ms, double queue_kib) {
    nanos_per_byte_ = mbit > 0 ? 8e3 / mbit : 0;
    queue_limit_ = queue_ms * kMillisecond;
    if (queue_kib > 0) queue_limit_ = std::min(queue_limit_, queue_kib * 1024 * nanos_per_byte_);
  }
  bool limited() const { return nanos_per_byte_ > 0; }
  // When a segment that arrives at that time will have been sent, or kDropped: the queue is full.
  Nanos send(Nanos arrival, uint32_t bytes) {
    if (!limited()) return arrival;
    const Nanos start = std::max(arrival, idle_from_);
    if (start - arrival > queue_limit_) return kDropped;
    return idle_from_ = start + bytes * nanos_per_byte_;
  }
  double queued_bytes(Nanos now) const {
    return limited() ? std::max(0.0, idle_from_ - now) / nanos_per_byte_ : 0;
  }

 private:
  Nanos nanos_per_byte_ = 0, queue_limit_ = 0;
  Nanos idle_from_ = 0;
};
