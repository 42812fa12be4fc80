#include "transport/widening.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "transport/sys.h"

namespace pccl {
namespace {

constexpr std::uint64_t kLookMs = 50;
constexpr std::uint64_t kOtherDialsMs = 500;
// Lanes that are dialled at a time: several peers may do so, and a port has room for 256
// connections that have not proven who they are.
constexpr std::size_t kJoiningMax = 32;
constexpr std::uint64_t kLostMs = 1000;
// A link that has carried so much over a short line will carry more, in bursts perhaps.
constexpr std::uint64_t kWorthThreadsBytes = 64U << 20;
constexpr std::uint64_t kRefusedRestMs = 600'000;  // then lanes are dialled again

}  // namespace

void Widening::wake() {
  if (timer_) return;
  last_ = calls_.load();
  last_ms_ = loop_.now_ms();
  waits_since_ms_ = last_ms_;
  calls_.mend(last_ms_);
  timer_ = loop_.timer(kLookMs, kLookMs, [this] { look(); });
}

void Widening::lost() { rests_until_ms_ = loop_.now_ms() + kLostMs; }

void Widening::refused() { not_before_ms_ = loop_.now_ms() + kRefusedRestMs; }

void Widening::look() {
  const LinkLoad load = calls_.load();
  const std::uint64_t now = loop_.now_ms();
  calls_.mend(now);  // after the load: once nothing is on its way, no copy is left
  const LinkLoad before = std::exchange(last_, load);
  const std::uint64_t since_ms = std::exchange(last_ms_, now);
  const Line& line = load.line;
  if (!before.waits) waits_since_ms_ = now;
  if (calls_.seen) calls_.seen(load, now, load.waits ? waits_since_ms_ : now);
  // While the process sends under its rate, what arrives says nothing of the line, and more lanes
  // carry no more.
  const bool held = load.held || before.held || load.holds != before.holds;
  const auto since = [](std::uint64_t now_bytes, std::uint64_t before_bytes) {
    return std::max(now_bytes, before_bytes) - before_bytes;  // a lane less is no news
  };
  carried_ += since(load.delivered, before.delivered);
  if (is_short(line) && !held && carried_ >= kWorthThreadsBytes) {
    dial_lacking(load, rules_.short_line_lanes);
  }
  if (!load.sends) {
    if (!is_short(line)) lacks_since_ms_ = 0;
    timer_.reset();
    return;
  }
  if (!load.full || !before.full) return;
  const std::uint64_t since_us = (now - since_ms) * 1000;
  const std::uint64_t arrived = since(line.arrived_bytes, before.line.arrived_bytes);
  const std::uint64_t sent = since(line.sent_bytes, before.line.sent_bytes);
  const std::uint64_t resent = since(line.resent_bytes, before.line.resent_bytes);
  bool on_trial = false;
  if (!held) {
    if (!line.by_model) {
      losses_.look(
          {since_us, arrived, sent, resent, line.least_trip_us, line.packet_bytes, load.lanes});
    }
    on_trial = tries_model(line, {since_us, arrived, losses_.limits()});
    lossy_ = lossy_ || (losses_.limits() && !line.by_model && !has_model());
  }
  if (is_short(line)) return calls_.pace(0);  // and all lanes that are there, which cut no slices
  if (held || on_trial) return calls_.use(count_.wanted());
  const bool by_losses = !line.by_model && line.least_trip_us >= kLongLineUs;
  if (load.waits && before.waits) {  // else as much arrives as was sent
    pace_.look({since_us, arrived, sent, resent, line.least_trip_us, line.trip_us, by_losses,
                (now - waits_since_ms_) * 1000});
  }
  const std::uint64_t pace = line.by_model || by_losses ? pace_.limit() : 0;
  calls_.pace(pace);
  std::size_t most = line.by_model ? kWidestLanes : kWidestLossyLanes;
  const bool short_line = line.least_trip_us < kLongTripUs;
  if (short_line) most = std::min(most, kWidestShortLanes);
  if (now < not_before_ms_) most = std::min(most, load.lanes);  // no others are to be had
  // Connections that go by losses may have a long queue, made by others, and need more lanes.
  const bool full = line.by_model && queues(line.least_trip_us, line.trip_us);
  // A line whose connections are held is full, although it shows no queue.
  const bool crowded = pace_.crowded() || (by_losses ? pace_.crowded_lately() : pace > 0);
  std::size_t wanted =
      count_.look({since_us, since(load.delivered, before.delivered), line.least_trip_us, crowded,
                   most, full, by_losses, sent, resent});
  if (short_line) wanted = std::max(wanted, rules_.short_line_lanes);
  calls_.use(wanted);
  dial_lacking(load, wanted);
}

bool Widening::is_short(const Line& line) const {
  return line.least_trip_us < kLongTripUs && !lossy_;
}

/// Over a long line BBR is chosen when a lane is made. Returns whether a trial is under way: no
/// number of lanes is on trial then.
bool Widening::tries_model(const Line& line, const ModelTrial::Look& carried) {
  if (!has_model() || line.least_trip_us >= kLongLineUs) return false;
  if (line.by_model != trial_.by_model()) {
    model_refused_ = !line.by_model;  // otherwise the host has BBR for all connections
    if (model_refused_) calls_.go_by_model(false);
    return false;
  }
  calls_.go_by_model(trial_.look(carried));
  return trial_.on_trial();
}

void Widening::dial_lacking(const LinkLoad& load, std::size_t lanes) {
  if (lanes <= std::max<std::size_t>(1, rules_.least_lanes) || load.lanes + load.joining >= lanes) {
    lacks_since_ms_ = 0;
  } else {
    dial(load, lanes);
  }
}

void Widening::dial(const LinkLoad& load, std::size_t wanted) {
  const std::uint64_t now = loop_.now_ms();
  if (lacks_since_ms_ == 0) lacks_since_ms_ = now;
  const std::uint64_t other_ms = std::max(kOtherDialsMs, 8 * load.line.least_trip_us / 1000);
  if (now < not_before_ms_ || (!rules_.dials && now - lacks_since_ms_ < other_ms)) return;
  if (now < rests_until_ms_ || load.joining >= kJoiningMax) return;
  std::size_t more = std::min(wanted - load.lanes - load.joining, kJoiningMax - load.joining);
  if (!rules_.dials &&
      !reached_) {  // perhaps nobody can dial this peer (a NAT): one lane finds out
    if (load.joining > 0) return;
    more = 1;
  }
  if (descriptors_free() < more + kDescriptorsLeft) {
    log_debug("no more lanes to a peer: fewer than " + std::to_string(more + kDescriptorsLeft) +
              " descriptors are free");
    return refused();
  }
  calls_.dial(more);
}

}  // namespace pccl
