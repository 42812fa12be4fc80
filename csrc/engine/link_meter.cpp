#include "engine/link_meter.h"

#include <algorithm>
#include <cstring>

#include "base/limits.h"
#include "base/random.h"

namespace pccl {
namespace {

constexpr std::uint64_t kMeterLookMs = 10;
constexpr std::uint64_t kStretchMs = 100;
constexpr std::uint64_t kLeastMs = 800;  // a connection finds the rate of its line in this time
constexpr std::uint64_t kMostMs = 4000;
constexpr std::uint64_t kTrips = 20;      // as kLeastMs, where the way is long
constexpr std::uint64_t kWatchTimes = 2;  // operations are watched so much longer
constexpr std::size_t kSegments = 64;
constexpr std::size_t kAhead = 4;
// Faster links are alike: all is there before a stretch is over.
constexpr std::uint64_t kRateMost = kSegments * kSegmentBytesMax * 1000 / kStretchMs;
// Operations show enough if they show so many parts of what is known.
constexpr std::uint64_t kEnough = 4;
constexpr std::uint64_t kEnoughOf = 5;
// A master asks for one at a time, and another one may have.
constexpr std::size_t kWaitingMax = 16;

}  // namespace

void FastestStretch::saw(std::uint64_t now_ms, std::uint64_t bytes) {
  if (!seen_.empty() && bytes < seen_.back().second) seen_.clear();  // a lane less
  seen_.emplace_back(now_ms, bytes);
  while (seen_.size() > 1 && now_ms - seen_[1].first >= least_ms_) seen_.pop_front();
  const std::uint64_t ms = now_ms - seen_.front().first;
  if (ms >= least_ms_) best_ = std::max(best_, (bytes - seen_.front().second) * 1000 / ms);
}

std::uint64_t FastestStretch::rate() const {
  if (best_ > 0 || seen_.size() < 2) return best_;
  const std::uint64_t ms = std::max<std::uint64_t>(1, seen_.back().first - seen_.front().first);
  return (seen_.back().second - seen_.front().second) * 1000 / ms;
}

void LinkMeter::measure(PeerId peer, std::uint64_t known) {
  if (!run_) return begin({peer, known});
  if (waiting_.size() >= kWaitingMax) return done_(peer, 0, 0);
  waiting_.push_back({peer, known});
}

void LinkMeter::begin(const Wanted& wanted) {
  const PeerId peer = wanted.peer;
  const std::optional<LinkView> link = context_.links.view(peer);
  if (!link) return done_(peer, 0, 0);
  if (link->local) return done_(peer, kLocalRate, 0);
  const std::uint64_t trip_ms = link->round_trip_us / 1000;
  const std::uint64_t now = context_.clock.now_ms();
  run_ = std::make_unique<Run>();
  run_->peer = peer;
  run_->known = wanted.known;
  run_->stretch = FastestStretch(std::max(kStretchMs, 2 * trip_ms));
  run_->time_ms = std::clamp(kTrips * trip_ms, kLeastMs, kMostMs);
  run_->trip_us = link->round_trip_us;
  run_->token = context_.token(*this);
  run_->timer = context_.clock.timer(kMeterLookMs, kMeterLookMs, [this] { look(); });
  if (wanted.known == 0) return begin_to_send(*link);
  run_->until_ms = now + kWatchTimes * run_->time_ms;
  run_->stretch.saw(now, link->bytes_arrived);
}

void LinkMeter::begin_to_send(const LinkView& link) {
  const std::uint64_t now = context_.clock.now_ms();
  run_->known = 0;
  run_->until_ms = now + run_->time_ms;
  run_->arrived_before = link.bytes_arrived;
  run_->payload.resize(kSegmentBytesMax);
  Random random(now);  // nothing on the way can make the bytes fewer
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= run_->payload.size();
       at += sizeof(std::uint64_t)) {
    const std::uint64_t number = random.next();
    std::memcpy(&run_->payload[at], &number, sizeof number);
  }
  run_->stretch.saw(now, link.bytes_arrived);
  send_more();
}

void LinkMeter::send_more() {
  while (run_->on_the_way < kAhead && run_->sent < kSegments) {
    SegmentHeader header;
    header.kind = SegmentKind::measure;
    header.group = group_;
    header.bytes = static_cast<std::uint32_t>(run_->payload.size());
    ++run_->sent;
    ++run_->on_the_way;
    context_.links.send_segment(run_->peer, header, run_->payload.data(), run_->token,
                                EngineContext::cookie(run_->token, 0));
  }
}

void LinkMeter::segment_sent(MemoryToken, PeerId, std::uint32_t) {
  if (!run_) return;
  --run_->on_the_way;
  if (context_.clock.now_ms() < run_->until_ms) send_more();
}

void LinkMeter::look() {
  const std::optional<LinkView> link = context_.links.view(run_->peer);
  if (!link) return end(0);
  const std::uint64_t now = context_.clock.now_ms();
  run_->stretch.saw(now, link->bytes_arrived);
  if (run_->known > 0) return look_at_operations(*link);
  const std::uint64_t all = std::uint64_t{kSegments} * kSegmentBytesMax;
  if (now >= run_->until_ms || link->bytes_arrived >= run_->arrived_before + all) {
    end(run_->stretch.rate());
  }
}

void LinkMeter::look_at_operations(const LinkView& link) {
  if (context_.clock.now_ms() < run_->until_ms) return;
  const std::uint64_t seen = run_->stretch.rate();
  const bool enough = seen >= run_->known / kEnoughOf * kEnough;
  if (enough) return end(std::max(seen, run_->known));
  begin_to_send(link);
}

void LinkMeter::end(std::uint64_t rate) {
  const PeerId peer = run_->peer;
  const std::uint64_t trip_us = run_->trip_us;
  const std::uint64_t cap = context_.options.links.max_rate;  // a burst is faster
  rate = std::min(rate, cap > 0 ? std::min(cap, kRateMost) : kRateMost);
  retire();
  done_(peer, rate, trip_us);
  while (!run_ && !waiting_.empty()) {
    const Wanted next = waiting_.front();
    waiting_.pop_front();
    begin(next);
  }
}

void LinkMeter::link_gone(PeerId peer) {
  if (run_ && run_->peer == peer) end(0);
}

void LinkMeter::stop() {
  waiting_.clear();
  retire();
}

void LinkMeter::retire() {
  if (!run_) return;
  context_.retire(run_->token);
  run_.reset();
}

}  // namespace pccl
