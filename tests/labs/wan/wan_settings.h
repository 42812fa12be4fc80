// What can be set of the emulated network, by name, and the rules of the boxes in it that drop
// packets.
#pragma once

#include <map>
#include <string>
#include <unordered_map>

#include "wan_packets.h"

struct PairSettings {
  double delay_ms = 0, jitter_ms = 0, keep_order = 1;
  double loss_pct = 0, burst_packets = 1, burst_loss_pct = 100;
  double rate_mbit = 0, queue_ms = 50, queue_kib = 0;
  double duplicate_pct = 0, reorder_pct = 0, reorder_ms = 5;
  double line = 0;
  double cut = 0, cut_port = 0, swallow_above = 0, forget_s = 0;
};
inline const std::map<std::string, double PairSettings::*> kPairSettings = {
    {"delay_ms", &PairSettings::delay_ms},
    {"jitter_ms", &PairSettings::jitter_ms},
    {"keep_order", &PairSettings::keep_order},
    {"loss_pct", &PairSettings::loss_pct},
    {"burst_packets", &PairSettings::burst_packets},
    {"burst_loss_pct", &PairSettings::burst_loss_pct},
    {"rate_mbit", &PairSettings::rate_mbit},
    {"queue_ms", &PairSettings::queue_ms},
    {"queue_kib", &PairSettings::queue_kib},
    {"line", &PairSettings::line},
    {"duplicate_pct", &PairSettings::duplicate_pct},
    {"reorder_pct", &PairSettings::reorder_pct},
    {"reorder_ms", &PairSettings::reorder_ms},
    {"cut", &PairSettings::cut},
    {"cut_port", &PairSettings::cut_port},
    {"swallow_above", &PairSettings::swallow_above},
    {"forget_s", &PairSettings::forget_s}};

struct HostSettings {
  double up_mbit = 0, up_queue_ms = 50, up_queue_kib = 0;
  double down_mbit = 0, down_queue_ms = 50, down_queue_kib = 0;
};
inline const std::map<std::string, double HostSettings::*> kHostSettings = {
    {"up_mbit", &HostSettings::up_mbit},
    {"up_queue_ms", &HostSettings::up_queue_ms},
    {"up_queue_kib", &HostSettings::up_queue_kib},
    {"down_mbit", &HostSettings::down_mbit},
    {"down_queue_ms", &HostSettings::down_queue_ms},
    {"down_queue_kib", &HostSettings::down_queue_kib}};

// Drops what the box of one directed pair does not let through.
class Middlebox {
 public:
  bool drops(const Packet& packet, const PairSettings& settings, Nanos now) {
    if (settings.cut != 0) return true;
    if (settings.swallow_above > 0 && Segments(packet).bytes(0) > settings.swallow_above)
      return true;
    const TcpView tcp(packet);
    if (!tcp.there()) return false;
    if (settings.cut_port != 0 && tcp.uses(settings.cut_port)) return true;
    return settings.forget_s > 0 && forgets(tcp, settings.forget_s * 1e9, now);
  }

 private:
  // A connection that has been silent for too long is unknown until it is made anew.
  bool forgets(const TcpView& tcp, Nanos after, Nanos now) {
    const auto seen = seen_.find(tcp.ports());
    if (seen != seen_.end() && now - seen->second > after) seen_.erase(seen);
    if (!tcp.opens() && seen_.count(tcp.ports()) == 0) return true;
    seen_[tcp.ports()] = now;
    return false;
  }

  std::unordered_map<uint32_t, Nanos> seen_;  // by the ports of both ends
};
