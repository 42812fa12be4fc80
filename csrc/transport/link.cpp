#include "transport/link.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/assert.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"

namespace pccl {
namespace {

constexpr double kOfAllAlike = 0.25;  // the part of the pace that all lanes share alike
// Bytes a second that no lane reaches: under a limit the kernel spreads what a window allows over
// the round trip. Bursts of many lanes overfill the line's queue.
constexpr std::uint64_t kSpread = 0xFFFFFFFE;
// A lane that is held to less than that is stuck: the kernel keeps to what it has planned.
constexpr std::uint64_t kLeastPace = 16U << 10;
constexpr std::size_t kSharersMin = 4;  // of the pace, while few slices are to be sent

}  // namespace

Link::Link(LinkOwner& owner, Handle to, std::uint64_t count)
    : handle(std::move(to)), serial(count), owner_(owner) {}

std::string Link::Opening::text() const {
  std::string seen = dial ? dial->report() : "";
  if (!last_failure.empty() && last_failure != seen)
    add_to_list(seen, last_failure, "; before that: ");
  return seen;
}

void Link::attach(std::unique_ptr<Lane> lane) {
  lanes_.push_back({std::move(lane)});
  choose();
}

void Link::join(std::unique_ptr<Lane> lane) {
  forget_gone();
  Lane& joined = *lane;
  lanes_.push_back({std::move(lane)});
  ++bulk_lanes_;
  choose();
  Outgoing word;
  word.frame.type = FrameType::joined;
  joined.send(std::move(word));  // then frames of the shared queue
  if (started_) joined.start();
}

void Link::await(std::unique_ptr<Lane> lane) {
  forget_gone();
  Lane& awaited = *lane;
  lanes_.push_back({std::move(lane), /*awaited=*/true});
  if (started_) awaited.start();
}

std::size_t Link::room() const {
  const auto gone =
      std::count_if(lanes_.begin(), lanes_.end(), [](const Held& held) { return held.gone; });
  const std::size_t taken = lanes_.size() - static_cast<std::size_t>(gone) + joining.size();
  return kLanesMax - std::min(kLanesMax, taken);
}

Link::Held& Link::held(const Lane& lane) {
  const auto found = std::find_if(lanes_.begin(), lanes_.end(),
                                  [&](const Held& held) { return held.lane.get() == &lane; });
  PCCL_ASSERT(found != lanes_.end(), "a lane of another link");
  return *found;
}

void Link::forget_gone() {
  std::erase_if(lanes_, [](const Held& held) { return held.gone; });
}

/// The first of the bulk lanes that have joined, or the small lane alone.
void Link::choose() {
  if (lanes_.empty()) return;
  std::size_t chosen = 0;
  for (auto held = lanes_.begin() + 1; held != lanes_.end(); ++held) {
    const bool there = !held->awaited && !held->over && !held->late;
    held->used = there && chosen < wanted_lanes_;
    if (held->used) ++chosen;
    if (by_model_ && there) held->lane->go_by_model(true);
  }
  lanes_.front().used = chosen == 0;
  share_pace(true);
}

void Link::use(std::size_t bulk_lanes) {
  if (std::exchange(wanted_lanes_, bulk_lanes) == bulk_lanes) return;
  cuts_ = bulk_lanes > 1 || long_;
  log_debug("the link to peer " + name_of(handle) + " sends over " + std::to_string(bulk_lanes) +
            (bulk_lanes == 1 ? " bulk lane" : " bulk lanes"));
  choose();
  flush_bulk();
}

void Link::go_by_model(bool by_model) {
  if (std::exchange(by_model_, by_model) == by_model) return;
  log_debug("the link to peer " + name_of(handle) +
            (by_model ? " loses packets, and goes by BBR" : " goes by losses, as its host does"));
  for (const Held& held : lanes_) {
    if (held.lane->open()) held.lane->go_by_model(by_model);
  }
}

void Link::pace(std::uint64_t bytes_per_second) {
  const bool anew = pace_ == 0;
  if (std::exchange(pace_, bytes_per_second) != bytes_per_second) share_pace(anew);
}

/// Each lane gets as much of the pace as it has carried of what arrived since the last time, since
/// lanes may take different ways; a part is for all alike, so that none stays slow. `anew`, and
/// where lanes go by losses, all of it: what such a lane has carried says when it has lost a
/// packet (and hold_one shares what few slices leave).
void Link::share_pace(bool anew) {
  std::uint64_t used = 0;
  std::uint64_t all = 0;
  bool by_losses = false;
  for (Held& held : lanes_) {
    if (!held.lane->open()) continue;
    const Line line = cuts_ ? held.lane->sent().line : Line{};
    by_losses = by_losses || (held.used && !line.by_model && line.least_trip_us >= kLongLineUs);
    const std::uint64_t arrived = line.arrived_bytes;
    const std::uint64_t before = std::exchange(held.arrived, arrived);
    held.carried = anew || arrived < before ? 0 : arrived - before;
    if (!held.used) continue;
    ++used;
    all += held.carried;
  }
  used_ = std::max<std::size_t>(1, used);
  held_alike_ = by_losses && pace_ > 0;
  const double alike = by_losses ? 1 : kOfAllAlike;
  for (Held& held : lanes_) {
    std::uint64_t share = held.used && by_losses && used > 1 ? kSpread : 0;
    if (held.used && pace_ > 0) {
      const double carried = all > 0 ? static_cast<double>(held.carried) / static_cast<double>(all)
                                     : 1 / static_cast<double>(used);
      const double part = alike / static_cast<double>(used) + (1 - alike) * carried;
      share = std::max(kLeastPace, static_cast<std::uint64_t>(part * static_cast<double>(pace_)));
    }
    if (std::exchange(held.pace, share) != share && held.lane->open()) held.lane->pace(share);
  }
}

/// Lanes that go by losses are many. Where fewer slices are to be sent, those lanes that take one
/// share the pace: a small operation would wait for the share of each.
void Link::hold_one(Held& held) {
  if (!held_alike_) return;
  const std::size_t slices = std::max(kSharersMin, queued_bytes_ / kSliceBytes + 1);
  const std::uint64_t share = std::max(kLeastPace, pace_ / std::min(used_, slices));
  const std::uint64_t before = std::exchange(held.pace, share);
  if (share != before) held.lane->pace(share);
}

/// Each idle lane takes one slice, then each a second one: a lane alone would take what its kernel
/// buffer holds, and small operations would wait until it has opened its window. A lane that is
/// closing takes what is left, then says goodbye.
void Link::flush_bulk() {
  std::uint64_t before = 0;
  do {
    before = taken_;
    for (const Held& held : lanes_) {
      if (!bulk_waits()) return;
      if (!held.used || !held.lane->idle()) continue;
      taken_max_ = state == State::closing ? 0 : taken_ + 1;
      held.lane->flush();
      taken_max_ = 0;
    }
  } while (taken_ != before);
}

/// What is late or stuck goes over other lanes too: before all else that waits.
void Link::mend(std::uint64_t now_ms) {
  forget_gone();
  Moved moved = look_at_lanes(now_ms);
  const bool waits = bulk_waits();
  moved.look.waits = waits;
  moved.look.ends = !waits && nothing_waits_since_ms_ == 0;
  if (moved.look.ends) nothing_waits_since_ms_ = now_ms;
  if (waits) nothing_waits_since_ms_ = 0;
  LinkProgress progress;
  progress.trip_us = moved.trip_us;
  progress.nothing_waits_ms = nothing_waits_since_ms_ == 0 ? 0 : now_ms - nothing_waits_since_ms_;
  progress.needs_ms = time_needed_.look(moved.look);
  if (moved.recovered) choose();
  // The first look after a while says nothing of the time before it.
  const std::uint64_t since_ms = std::min(moved.look.since_ms, TimeNeeded::kLookMsMax);
  pass_on_late(progress, moved.others_move ? since_ms : 0);
  flush_bulk();
}

/// Sees what each lane has brought over since the last look, and which late one has nothing left.
Link::Moved Link::look_at_lanes(std::uint64_t now_ms) {
  Moved moved;
  moved.look.since_ms = now_ms - std::exchange(mended_ms_, now_ms);
  std::size_t measured = 0;
  for (Held& held : lanes_) {
    if (!held.lane->open() || held.awaited) continue;
    held.lane->trim();
    const Lane::Sent sent = held.lane->sent();
    const std::uint64_t delivered =
        sent.bytes - std::min<std::uint64_t>(sent.bytes, sent.unacknowledged);
    const bool carries = held.used || &held != &lanes_.front();  // not messages alone
    // Under encryption what was written counts fewer bytes than what is on its way.
    const bool moves = delivered > held.delivered;
    if (moves && carries) moved.look.arrived_bytes += delivered - held.delivered;
    held.delivered = std::max(held.delivered, delivered);
    moved.others_move = moved.others_move || (moves && carries);
    LaneProgress& progress = held.progress;
    const bool was_drained = progress.drained;
    progress.drained = sent.unacknowledged == 0 && held.lane->idle();
    progress.held = sent.held;
    held.waits = !moves && !was_drained && !progress.drained && !sent.held;
    if (held.late && progress.drained) {
      held.late = false;
      moved.recovered = true;
    }
    if (held.used) ++moved.look.used;
    if (held.used && !progress.drained) ++moved.look.sending;
    if (carries && !held.late) {  // else others send what it holds
      moved.look.under_way_bytes += sent.unacknowledged + (held.lane->idle() ? 0 : kSliceBytes);
    }
    if (sent.line.trip_us == 0) continue;
    moved.trip_us += sent.line.trip_us;
    ++measured;
  }
  if (measured > 0) moved.trip_us /= measured;
  return moved;
}

/// Puts back what stragglers have taken. `stuck_ms`: how much longer a lane is stuck that waits.
void Link::pass_on_late(const LinkProgress& link, std::uint64_t stuck_ms) {
  std::vector<Held*> lanes;  // bulk lanes alone: what the small one has begun has no copies
  std::vector<LaneProgress> seen;
  for (Held& held : lanes_) {
    const bool small = &held == &lanes_.front();
    if (small || !held.lane->open() || held.awaited || held.late) continue;
    LaneProgress& progress = held.progress;
    progress.stuck_ms = held.waits ? progress.stuck_ms + stuck_ms : 0;
    progress.used = held.used;
    lanes.push_back(&held);
    seen.push_back(progress);
  }
  if (!cuts_ || lanes.size() < 2) return;
  const auto late = stragglers(seen, link);
  for (const std::size_t place : late) {
    lanes[place]->late = true;
    slices_out_.put_back(lanes[place]->lane->share());
  }
  if (!late.empty()) choose();
}

LinkLoad Link::load() const {
  LinkLoad load;
  load.lanes = bulk_lanes_;
  load.joining = joining.size();
  std::size_t used = 0;
  std::size_t sending = 0;
  std::size_t waiting = 0;
  std::size_t measured = 0;
  load.line.by_model = true;
  for (const Held& held : lanes_) {
    if (!held.lane->open()) continue;
    const Lane::Sent sent = held.lane->sent();
    const std::uint64_t delivered =
        sent.bytes - std::min<std::uint64_t>(sent.bytes, sent.unacknowledged);
    load.delivered += delivered;
    load.held = load.held || sent.held;
    load.holds += sent.holds;
    if (held.awaited && !held.over) ++load.joining;
    const Line& line = sent.line;
    load.line.arrived_bytes += line.arrived_bytes;
    load.line.sent_bytes += line.sent_bytes;
    load.line.resent_bytes += line.resent_bytes;
    const bool bulk = &held != &lanes_.front();
    if (bulk && (sent.unacknowledged > 0 || !held.lane->idle())) load.sends = true;
    if (!held.used) continue;
    ++used;
    load.large_delivered += delivered;
    if (sent.unacknowledged > 0 || !held.lane->idle()) ++sending;
    if (line.unsent_bytes > 0 || !held.lane->idle()) ++waiting;
    if (line.least_trip_us == 0) continue;
    ++measured;
    const bool least = measured == 1 || line.least_trip_us < load.line.least_trip_us;
    if (least) load.line.least_trip_us = line.least_trip_us;
    load.line.trip_us += line.trip_us;
    load.line.packet_bytes = line.packet_bytes;
    load.line.by_model = load.line.by_model && line.by_model;
  }
  load.full = (sending > 0 || bulk_waits()) && 2 * sending >= used;
  load.sends = load.sends || sending > 0 || bulk_waits();
  load.waits = bulk_waits() || (used > 0 && 2 * waiting >= used);
  if (measured > 0) load.line.trip_us /= measured;
  load.line.by_model = load.line.by_model && measured > 0;
  return load;
}

LinkView Link::view() const {
  const LinkLoad now = load();
  LinkView view;
  view.peer = peer();
  view.name = name_of(handle);
  view.carrier = lanes_.empty() ? "" : lanes_.front().lane->carrier();
  view.bytes_sent = bytes_sent_;
  view.bytes_received = bytes_received_;
  view.bytes_resent = now.line.resent_bytes;
  view.bytes_arrived = now.line.arrived_bytes;
  view.local = local();
  view.bulk_lanes = bulk_lanes_;
  view.lanes_lost = lanes_lost_;
  view.round_trip_us = now.line.least_trip_us;
  view.bbr = now.line.by_model;
  view.pace = pace_;
  return view;
}

std::vector<LaneView> Link::lane_views() const {
  std::vector<LaneView> views;
  for (const Held& held : lanes_) {
    if (!held.lane->open()) continue;
    const Lane::Sent sent = held.lane->sent();
    const Line& line = sent.line;
    views.push_back({sent.bytes, line.resent_bytes, line.delivered_rate, line.trip_us});
  }
  return views;
}

void Link::start() {
  started_ = true;
  long_ = lanes_.front().lane->sent().line.least_trip_us >= kLongTripUs;
  cuts_ = cuts_ || long_;
  for (const Held& held : lanes_) held.lane->start();
}

void Link::send_message(FrameType type, std::vector<std::byte> payload) {
  PCCL_ASSERT(!payload.empty(), "a message of no bytes");
  PCCL_ASSERT(payload.size() <= kRelayBytesMax, payload.size());
  Outgoing out;
  out.frame.type = type;
  out.frame.payload_bytes = static_cast<std::uint32_t>(payload.size());
  out.owned = std::move(payload);
  out.payload = out.owned.data();
  queued_bytes_ += out.payload_bytes();
  queued_message_bytes_ += out.payload_bytes() + kKeptMessageBytes;
  lanes_.front().lane->send(std::move(out));
}

void Link::send_segment(const SegmentHeader& header, const std::byte* payload, MemoryToken token,
                        std::uint64_t cookie, std::optional<AreaPlace> place) {
  PCCL_ASSERT(header.bytes <= kSegmentBytesMax, header.bytes);
  Outgoing out;
  out.frame.type = header.route.relayed() ? FrameType::routed : FrameType::segment;
  out.frame.payload_bytes = header.bytes;
  out.frame.segment = header;
  out.payload = payload;
  out.token = token;
  out.cookie = cookie;
  out.tells = true;
  if (place && lanes_.front().lane->lends()) {
    out.frame.type = FrameType::reference;
    out.frame.payload_bytes = 0;
    out.frame.segment.area = *place;
    return lanes_.front().lane->send(std::move(out));
  }
  if (header.bytes <= kSmallSegmentBytesMax) {
    queued_bytes_ += header.bytes;
    return lanes_.front().lane->send(std::move(out));
  }
  bulk_.push(std::move(out));
  queued_bytes_ += header.bytes;
  flush_bulk();
}

void Link::cancel(MemoryToken token) {
  queued_bytes_ -= bulk_.cancel(token);
  slices_out_.cancel(token);
  slices_in_.cancel(token);
  for (const Held& held : lanes_) queued_bytes_ -= held.lane->cancel(token);
  // A lane that had nothing but these frames is idle now, and nothing else would wake it.
  if (started_) flush_bulk();
}

void Link::close(std::uint64_t quiet_ms) {
  state = State::closing;
  widening.reset();
  relane.reset();
  joining.clear();
  for (const Held& held : lanes_) held.lane->close(quiet_ms);
}

bool Link::gave_up() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const Held& held) { return held.lane->gave_up(); });
}

void Link::end() {
  widening.reset();
  opening.reset();
  relane.reset();
  joining.clear();
  for (const Held& held : lanes_) held.lane->end();
  bulk_.clear();
  slices_out_.clear();
  slices_in_.clear();
  queued_bytes_ = 0;
  queued_message_bytes_ = 0;
}

void Link::lane_message(FrameType type, std::span<const std::byte> payload) {
  ++messages_received_;
  if (type == FrameType::relay) return owner_.link_events().relay_arrived(peer(), payload);
  owner_.link_events().control_arrived(peer(), payload);
}

Placement Link::lane_segment_header(const SegmentHeader& header) {
  if (!header.slice.is_one()) return owner_.link_events().segment_header(peer(), header);
  const auto found = slices_in_.find(header);
  if (!found) {
    owner_.link_lost(*this, "broken framing: " + found.error().text);
    return {};
  }
  if (found.value()) return place_of_slice(*found.value(), header);
  SegmentHeader whole = header;
  whole.slice = {};
  whole.in_place = false;
  const Placement at = owner_.link_events().segment_header(peer(), whole);
  slices_in_.place(header, at);
  return place_of_slice(at, header);
}

void Link::lane_part(const SegmentHeader& header, const Placement& at, std::uint32_t offset,
                     std::span<const std::byte> bytes) {
  owner_.link_events().segment_part(peer(), header, at, offset, bytes);
}

void Link::lane_segment(const SegmentHeader& header, const Placement& at) {
  if (!header.slice.is_one()) return owner_.link_events().segment_arrived(peer(), header, at);
  const SlicesIn::Arrival arrival = slices_in_.arrived(header);
  if (arrival.twice) {
    for (const Held& held : lanes_) {
      held.lane->drop_slice(header.slice.number, header.slice.offset);
    }
  }
  const auto& whole = arrival.whole;
  if (whole && !whole->at.drops()) {
    owner_.link_events().segment_arrived(peer(), whole->header, whole->at);
  }
}

void Link::lane_received(std::size_t payload_bytes, bool data) {
  bytes_received_ += payload_bytes;
  owner_.link_received(payload_bytes, data);
}

void Link::lane_sent(const Outgoing& frame) {
  if (!std::exchange(said_carrier_, true)) {
    log_debug("the link to peer " + name_of(handle) + " goes through " +
              std::string(lanes_.front().lane->carrier()));
  }
  if (frame.copy == Outgoing::Copy::first) queued_bytes_ -= frame.payload_bytes();
  bytes_sent_ += frame.data_bytes();
  if (has_message(frame.frame.type)) {
    queued_message_bytes_ -= frame.payload_bytes() + kKeptMessageBytes;
  }
  owner_.link_sent(*this, frame);
  if (frame.frame.type != FrameType::slice) return;
  if (auto segment = slices_out_.sent(frame)) {
    segment->frame.payload_bytes = 0;  // its slices have been counted
    owner_.link_sent(*this, *segment);
  }
}

std::optional<Outgoing> Link::lane_next(const Lane& lane) {
  if (!bulk_waits()) return std::nullopt;
  Held& taking = held(lane);
  if (!taking.used) return std::nullopt;
  // A lane that has something to send leaves slices to the others.
  const bool slices = slices_out_.cuts() || cuts_;
  if (slices && !lane.idle()) return std::nullopt;
  if (slices && taken_max_ == taken_ && taken_max_ > 0) return std::nullopt;
  ++taken_;
  nothing_waits_since_ms_ = 0;
  hold_one(taking);
  if (slices_out_.cuts()) return slices_out_.take();
  Outgoing next = bulk_.pop();
  if (!cuts_ || next.frame.type != FrameType::segment) return next;
  slices_out_.cut(std::move(next));
  return slices_out_.take();
}

void Link::lane_joined(Lane& lane) {
  Held& joined = held(lane);
  if (!joined.awaited) return owner_.link_lost(*this, "broken framing: a lane joins twice");
  joined.awaited = false;
  ++bulk_lanes_;
  choose();
  if (bulk_waits()) lane.flush();
}

void Link::lane_over(Lane& lane, const std::string& reason, bool broken) {
  if (state == State::closing) return;
  Held& ended = held(lane);
  if (broken && !ended.awaited) return owner_.link_lost(*this, reason);
  ended.over = true;
  ended.gone = ended.awaited;
  static_cast<void>(end_if_over());
}

/// Until all lanes are over, the others may still hold data.
bool Link::end_if_over() {
  const bool all =
      std::all_of(lanes_.begin(), lanes_.end(), [](const Held& held) { return held.over; });
  if (all) owner_.link_lost(*this, "the peer has closed the link");
  return all;
}

void Link::lane_lost(Lane& lane, const std::string& reason, Leftover left) {
  if (state == State::closing) return;
  Held& lost = held(lane);
  const bool small = &lost == &lanes_.front();
  if (!lost.awaited && (small || left.more || lane.local())) {
    return owner_.link_lost(*this, reason);
  }
  lost.over = lost.gone = true;
  if (end_if_over() || lost.awaited) return;
  --bulk_lanes_;
  ++lanes_lost_;
  log_debug("a lane to peer " + name_of(handle) + " is lost (" + reason +
            "); the others send its " + std::to_string(left.slices.size()) + " slices again");
  slices_out_.put_back(std::move(left.slices));
  choose();
  flush_bulk();
  owner_.link_lacks(*this);
}

void Link::lane_closed(Lane&) {
  const bool all = std::none_of(lanes_.begin(), lanes_.end(),
                                [](const Held& held) { return held.lane->open(); });
  if (all) owner_.link_closed(*this);
}

}  // namespace pccl
