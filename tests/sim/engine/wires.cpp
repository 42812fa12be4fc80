#include "wires.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/limits.h"

namespace pccl::sim {

Wire::Wire(Time& time, std::size_t lanes, Weather weather) : time_(time), weather_(weather) {
  ways_[0].resize(lanes);
  ways_[1].resize(lanes);
}

void Wire::start(int side) {
  started_[side] = true;
  for (std::size_t lane = 0; lane < ways_[0].size(); ++lane) plan_hand(1 - side, lane);
}

void Wire::send(int side, FramePointer frame) {
  if (shut_[side]) return;
  std::size_t lane = 0;
  if (frame->size > kSmallSegmentBytesMax && ways_[side].size() > 1 && has_segment(frame->type)) {
    lane = 1 + time_.chance.below(ways_[side].size() - 1);
  }
  way(side, lane).queue.push_back(std::move(frame));
  plan_take(side, lane);
}

void Wire::cancel(int side, MemoryToken token) {
  for (std::size_t lane = 0; lane < ways_[side].size(); ++lane) {
    Way& w = way(side, lane);
    std::erase_if(w.queue, [token](const FramePointer& frame) {
      if (frame->token != token || !has_segment(frame->type)) return false;
      if (frame->taken == 0) return true;
      frame->take(frame->size - frame->taken);  // the rest of a half-sent one is copied
      frame->from = nullptr;
      frame->tells = false;
      return false;
    });
    plan_take(side, lane);
    plan_hand(side, lane);
  }
  for (Way& w : ways_[1 - side]) {
    if (w.header_seen && w.at.token == token) w.at.to = nullptr;
  }
}

void Wire::shut(int side, bool broken) {
  if (std::exchange(shut_[side], true)) return;
  ends_[side] = nullptr;
  broken_[side] = true;
  const bool reset = broken && time_.hit(50);
  for (std::size_t lane = 0; lane < ways_[side].size(); ++lane) {
    Way& w = way(side, lane);
    for (const FramePointer& frame : w.queue) {
      // What was taken of it has left; the rest never comes.
      frame->from = nullptr;
    }
    w.queue.clear();
    if (reset) w.under_way.clear();
    w.goodbye = true;
    plan_hand(side, lane);
  }
}

void Wire::close(int side) {
  discards_[side] = true;
  for (std::size_t lane = 0; lane < ways_[side].size(); ++lane) {
    way(side, lane).goodbye = true;
    plan_hand(side, lane);
    plan_hand(1 - side, lane);  // what arrives goes nowhere
  }
}

std::size_t Wire::queued(int side) const {
  std::size_t bytes = 0;
  for (const Way& w : ways_[side]) {
    for (const FramePointer& frame : w.queue) bytes += frame->size - frame->taken;
  }
  return bytes;
}

bool Wire::flushed(int side) const {
  return std::all_of(ways_[side].begin(), ways_[side].end(),
                     [](const Way& w) { return w.queue.empty() && w.under_way.empty(); });
}

void Wire::plan_take(int from, std::size_t lane) {
  Way& w = way(from, lane);
  if (w.take_planned || w.queue.empty() || shut_[from] || ends_[from] == nullptr) return;
  if (w.in_flight >= weather_.window_bytes) return;
  w.take_planned = true;
  ends_[from]->process().after(time_.chance.below(3) == 0 ? time_.chance.below(50) : 0,
                               [self = shared_from_this(), from, lane] {
                                 self->way(from, lane).take_planned = false;
                                 self->take(from, lane);
                               });
}

void Wire::take(int from, std::size_t lane) {
  Way& w = way(from, lane);
  if (shut_[from] || ends_[from] == nullptr) return;
  std::vector<FramePointer> done;
  for (int frames = 0; !w.queue.empty() && w.in_flight < weather_.window_bytes && frames < 8;
       ++frames) {
    const FramePointer frame = w.queue.front();
    std::size_t count = std::min(frame->size - frame->taken, weather_.window_bytes - w.in_flight);
    if (frame->taken == 0 && (w.under_way.empty() || w.under_way.back() != frame)) {
      w.under_way.push_back(frame);
    }
    if (count > 1 && time_.hit(20)) count = time_.between(1, count);
    frame->take(count);
    moved_[from] += count;
    w.in_flight += std::max<std::size_t>(count, 1);
    if (frame->taken < frame->size) break;
    w.queue.pop_front();
    done.push_back(frame);
  }
  plan_hand(from, lane);
  for (const FramePointer& frame : done) {
    if (ends_[from] != nullptr) ends_[from]->taken(*this, *frame);
  }
  plan_take(from, lane);
}

void Wire::plan_hand(int from, std::size_t lane) {
  Way& w = way(from, lane);
  const int to = 1 - from;
  if (w.hand_planned || muted_[from] || ends_[to] == nullptr) return;
  if (!started_[to] && !discards_[to]) return;
  if (w.under_way.empty() && !(w.goodbye && w.queue.empty() && !w.said_over)) return;
  w.hand_planned = true;
  ends_[to]->process().after(
      time_.between(1, lane == 0 ? weather_.delay_us : weather_.bulk_delay_us),
      [self = shared_from_this(), from, lane] {
        self->way(from, lane).hand_planned = false;
        self->hand(from, lane);
      });
}

void Wire::hand(int from, std::size_t lane) {
  Way& w = way(from, lane);
  const int to = 1 - from;
  if (ends_[to] == nullptr || muted_[from]) return;
  std::size_t budget = time_.between(1, weather_.piece_bytes);
  while (budget > 0 && !w.under_way.empty() && ends_[to] != nullptr) {
    const FramePointer frame = w.under_way.front();
    if (!w.header_seen) {
      w.header_seen = true;
      w.handed = 0;
      w.at = {};
      if (!discards_[to] && has_segment(frame->type)) {
        const Placement at = ends_[to]->header(*this, *frame);
        if (ends_[to] == nullptr) return;
        w.at = at;
      }
    }
    const std::size_t count = std::min(budget, frame->taken - w.handed);
    if (count > 0 && w.at.to != nullptr) {
      std::memcpy(w.at.to + w.handed, frame->bytes.data() + w.handed, count);
    }
    w.handed += count;
    moved_[from] += count;
    budget -= std::min(budget, std::max<std::size_t>(count, 64));
    if (count > 0 && !discards_[to]) ends_[to]->bytes(*this, *frame, count);
    if (w.handed < frame->size) {
      w.in_flight -= std::min(w.in_flight, count);
      if (w.handed < frame->taken) continue;
      break;
    }
    w.in_flight -= std::min(w.in_flight, std::max<std::size_t>(count, 1));
    w.under_way.pop_front();
    w.header_seen = false;
    const Placement at = w.at;
    if (discards_[to]) continue;
    if (has_segment(frame->type) && at.to == nullptr) continue;
    ends_[to]->whole(*this, *frame, at);
  }
  plan_take(from, lane);
  over_if_done(from, lane);
  // A frame whose rest is still with its sender goes on when that has been taken.
  if (!w.under_way.empty() && w.header_seen && w.handed == w.under_way.front()->taken &&
      w.handed < w.under_way.front()->size && !shut_[from]) {
    return;
  }
  plan_hand(from, lane);
}

void Wire::over_if_done(int from, std::size_t lane) {
  Way& w = way(from, lane);
  const int to = 1 - from;
  if (!w.goodbye || !w.queue.empty() || w.said_over || ends_[to] == nullptr) return;
  const bool torn = !w.under_way.empty() && shut_[from] &&
                    w.under_way.front()->taken < w.under_way.front()->size &&
                    w.handed == w.under_way.front()->taken;
  if (!w.under_way.empty() && !torn) return;
  w.under_way.clear();
  w.said_over = true;
  if (broken_[from]) {
    return ends_[to]->over(*this, "the other side has closed the connection", true);
  }
  if (++goodbyes_[to] == ways_[from].size()) {
    ends_[to]->over(*this, "the peer has closed the link", false);
  }
}

}  // namespace pccl::sim
