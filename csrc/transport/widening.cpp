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
constexpr std::uint64_t kRefusedMs = 600'000;  // then lanes are dialled again

}  // namespace

void Widening::wake() {
  if (timer_) return;
  last_ = calls_.load();
  last_ms_ = loop_.now_ms();
  calls_.mend(last_ms_);
  timer_ = loop_.timer(kLookMs, kLookMs, [this] { look(); });
}

void Widening::lost() { rests_until_ms_ = loop_.now_ms() + kLostMs; }

void Widening::refused() { not_before_ms_ = loop_.now_ms() + kRefusedMs; }

void Widening::look() {
  const LinkLoad load = calls_.load();
  const std::uint64_t now = loop_.now_ms();
  calls_.mend(now);  // after the load: once nothing is on its way, no copy is left
  const LinkLoad before = std::exchange(last_, load);
  const std::uint64_t since_ms = std::exchange(last_ms_, now);
  const Line& line = load.line;
  const bool is_short = line.least_trip_us < kLongTripUs;
  // While the process sends under its rate, what arrives says nothing of the line, and more lanes
  // carry no more.
  const bool held = load.held || before.held || load.holds != before.holds;
  const auto since = [](std::uint64_t now_bytes, std::uint64_t before_bytes) {
    return std::max(now_bytes, before_bytes) - before_bytes;  // a lane less is no news
  };
  carried_ += since(load.delivered, before.delivered);
  if (is_short && !held && carried_ >= kWorthThreadsBytes) dial_lacking(load, short_line_lanes_);
  if (!load.sends) {
    if (!is_short) lacks_since_ms_ = 0;
    timer_.reset();
    return;
  }
  if (!load.full || !before.full) return;
  if (is_short) return calls_.pace(0);  // and all lanes that are there, which cut no slices
  if (held) return calls_.use(count_.wanted());
  const std::uint64_t since_us = (now - since_ms) * 1000;
  const bool by_losses = !line.by_model && line.least_trip_us >= kLongLineUs;
  if (load.waits && before.waits) {  // else as much arrives as was sent
    pace_.look({since_us, since(line.arrived_bytes, before.line.arrived_bytes),
                since(line.sent_bytes, before.line.sent_bytes),
                since(line.resent_bytes, before.line.resent_bytes), line.least_trip_us,
                line.trip_us, by_losses});
  }
  const std::uint64_t pace = line.by_model || by_losses ? pace_.limit() : 0;
  calls_.pace(pace);
  std::size_t most = line.by_model ? kWidestLanes : kWidestLossyLanes;
  if (now < not_before_ms_) most = std::min(most, load.lanes);  // no others are to be had
  // Connections that go by losses may have a long queue, made by others, and need more lanes.
  const bool full = line.by_model && queues(line.least_trip_us, line.trip_us);
  // A line whose connections are held is full, although it shows no queue.
  const bool crowded = pace_.crowded() || (by_losses ? pace_.crowded_lately() : pace > 0);
  const std::size_t wanted =
      count_.look({since_us, since(load.delivered, before.delivered), line.least_trip_us, crowded,
                   most, full, by_losses, since(line.sent_bytes, before.line.sent_bytes),
                   since(line.resent_bytes, before.line.resent_bytes)});
  calls_.use(wanted);
  dial_lacking(load, wanted);
}

void Widening::dial_lacking(const LinkLoad& load, std::size_t lanes) {
  if (lanes <= std::max<std::size_t>(1, least_) || load.lanes + load.joining >= lanes) {
    lacks_since_ms_ = 0;
  } else {
    dial(load, lanes);
  }
}

void Widening::dial(const LinkLoad& load, std::size_t wanted) {
  const std::uint64_t now = loop_.now_ms();
  if (lacks_since_ms_ == 0) lacks_since_ms_ = now;
  const std::uint64_t other_ms = std::max(kOtherDialsMs, 8 * load.line.least_trip_us / 1000);
  if (now < not_before_ms_ || (!dials_ && now - lacks_since_ms_ < other_ms)) return;
  if (now < rests_until_ms_ || load.joining >= kJoiningMax) return;
  std::size_t more = std::min(wanted - load.lanes - load.joining, kJoiningMax - load.joining);
  if (!dials_ && !reached_) {  // perhaps nobody can dial this peer (a NAT): one lane finds out
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
