#include "transport/stream_lane.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/limits.h"
#include "transport/crc32c.h"

namespace pccl {
namespace {

// Headers and messages are read into the buffer; payloads of segments go straight to their place.
constexpr std::size_t kSmallBufferBytes = 256U << 10;
constexpr std::size_t kBulkBufferBytes = 4096;
constexpr std::size_t kTurnBytes = 4U << 20;  // then other sockets have their turn
constexpr int kTurnCalls = 16;
constexpr std::size_t kPartBytes = 128U << 10;    // of a payload that is used in place
constexpr std::size_t kPartGrain = 16;            // the largest element
constexpr std::size_t kGatheredMax = 32;          // frames in one call
constexpr std::size_t kRefillBytes = 512U << 10;  // taken ahead from the shared queue
// Under a rate a message waits so long behind segments that it must not overtake: a sixth of the
// silence time-out, since a question and its answer may each wait at two processes.
constexpr std::uint64_t kMessageWaitMs = 5000;
constexpr std::size_t kNoBudget = ~std::size_t{0};
constexpr std::size_t kCopiedBytesMax = 8U << 20;  // twice what a socket holds by default
static_assert(kSmallBufferBytes >= kFrameHeaderBytes + kRelayBytesMax);

/// Memory for payload that is not wanted. One for each thread, because it is never read.
std::span<std::byte> nowhere() {
  thread_local std::vector<std::byte> scratch(256U << 10);
  return scratch;
}

/// Is this a frame that never waits for a rate?
bool is_free(const Outgoing& frame) {
  return !has_segment(frame.frame.type) || frame.payload_bytes() == 0;
}

/// May messages overtake this one? Small sends and their withdrawals keep their order, and relays
/// number what they pass on.
bool is_loose(const Outgoing& frame) {
  return frame.frame.type == FrameType::segment && frame.frame.segment.kind != SegmentKind::eager &&
         frame.payload_bytes() > 0;
}

/// Is this a slice that no other lane sends?
bool is_own_slice(const Outgoing& frame) {
  return frame.frame.type == FrameType::slice && frame.turn != Outgoing::Turn::spare;
}

std::size_t left_of(const Outgoing& frame) {
  return frame.header_size + frame.payload_bytes() - frame.sent;
}

}  // namespace

StreamLane::StreamLane(Loop& loop, LaneOwner& owner, Kind kind, std::unique_ptr<Stream> stream,
                       bool payload_crc, SendTurns* turns)
    : loop_(loop),
      owner_(owner),
      kind_(kind),
      stream_(std::move(stream)),
      payload_crc_(payload_crc),
      buffer_(kind == Kind::small ? kSmallBufferBytes : kBulkBufferBytes),
      turns_(turns) {
  if (kind_ == Kind::bulk) stream_->give_way();
  stream_->on_ready([this](bool readable, bool writable) { ready(readable, writable); });
}

StreamLane::~StreamLane() { let_go(); }

void StreamLane::start() {
  started_ = true;
  watch();
}

void StreamLane::ready(bool readable, bool writable) {
  if (writable) flush();
  if (readable && open()) read();
}

void StreamLane::watch() {
  if (!open()) return;
  const bool owes_goodbye = closing_ && !shut_;
  const bool sends = !queue_.empty() || !loose_.empty() || owes_goodbye;
  if (!sends || write_failed_) let_go();
  // A lane that waits for its turn does not ask whether its stream can write, which it can.
  stream_->want(started_ || closing_, sends && !held_ && !write_failed_);
}

void StreamLane::end() {
  progress_.reset();
  let_go();
  stream_->close();
  queue_.clear();
  loose_.clear();
  kept_.clear();
  kept_bytes_ = 0;
}

// ------------------------------------------------------------------------------------- writing

void StreamLane::send(Outgoing frame) {
  if (!open() || write_failed_) return;
  if (turns_ != nullptr && is_loose(frame)) {
    loose_.push_back(std::move(frame));
    if (queue_.empty() && !held_) flush();
    return;
  }
  queue_.push_back(std::move(frame));
  if (queue_.size() == 1 || held_) flush();
}

/// Takes as many of the small segments that wait as the rate allows. False: they go on waiting.
bool StreamLane::refill_loose() {
  const std::size_t allowed = turns_->allowed(*this);
  std::size_t bytes = 0;
  while (!loose_.empty() && queue_.size() < kGatheredMax && bytes < allowed) {
    bytes += kSegmentHeaderBytes + loose_.front().payload_bytes();
    queue_.push_back(std::move(loose_.front()));
    loose_.pop_front();
  }
  return !queue_.empty();
}

void StreamLane::refill() {
  if (!loose_.empty() && !refill_loose()) return hold();
  if (!loose_.empty()) return;
  std::size_t bytes = 0;
  while (queue_.size() < kGatheredMax && bytes < kRefillBytes) {
    std::optional<Outgoing> next = owner_.lane_next(*this);
    if (!next) break;
    bytes += next->payload_bytes();
    queue_.push_back(std::move(*next));
  }
  if (queue_.empty() && closing_ && !goodbye_sent_) {
    goodbye_sent_ = true;
    queue_.emplace_back().frame.type = FrameType::goodbye;
  }
}

void StreamLane::encode(Outgoing& frame) {
  frame.encoded = true;
  frame.frame.has_payload_crc = payload_crc_ && frame.payload_bytes() > 0;
  if (frame.frame.has_payload_crc) {
    frame.frame.payload_crc = crc32c(0, {frame.payload, frame.payload_bytes()});
  }
  frame.header_size = encode_frame_header(frame.frame, frame.header);
}

/// Bytes of the queue that may be written now.
std::size_t StreamLane::budget() {
  if (turns_ == nullptr) return kNoBudget;
  std::size_t last_message = 0;  // with those that it takes along
  for (std::size_t i = 0; presses_ && i < queue_.size(); ++i) {
    if (has_message(queue_[i].frame.type)) last_message = i + 1;
  }
  std::size_t free = 0;
  for (std::size_t i = 0; i < std::min(queue_.size(), kGatheredMax); ++i) {
    Outgoing& frame = queue_[i];
    // On the small lane a segment that has begun goes whole: a message may come behind it.
    const bool begun =
        kind_ == Kind::small && frame.sent > 0 && frame.payload_bytes() <= kSmallSegmentBytesMax;
    if (i >= last_message && !begun && !is_free(frame)) break;
    if (!frame.encoded) encode(frame);
    free += left_of(frame);
  }
  if (free > 0) return free;
  const std::size_t allowed = turns_->allowed(*this);
  Outgoing& next = queue_.front();
  if (!next.encoded) encode(next);
  const bool whole = kind_ == Kind::small && next.payload_bytes() <= kSmallSegmentBytesMax;
  return allowed > 0 && whole ? std::max(allowed, left_of(next)) : allowed;
}

void StreamLane::hold() {
  if (!std::exchange(held_, true)) ++holds_;
  turns_->wait(*this);
  const bool message = std::any_of(queue_.begin(), queue_.end(), [](const Outgoing& frame) {
    return has_message(frame.frame.type);
  });
  if (!message) {
    patience_.reset();
    presses_ = false;
  } else if (!patience_) {
    patience_ = loop_.timer(kMessageWaitMs, 0, [this] {
      presses_ = true;
      flush();
    });
  }
}

/// The lane does not wait for its turn any more.
void StreamLane::let_go() {
  if (turns_ == nullptr) return;
  held_ = false;
  patience_.reset();
  if (queue_.empty()) presses_ = false;
  turns_->leave(*this);
}

void StreamLane::flush() {
  std::size_t turn = 0;
  held_ = false;
  while (open() && !write_failed_ && turn < kTurnBytes) {
    if (queue_.empty()) refill();
    if (queue_.empty()) break;
    const std::size_t budget_bytes = budget();
    if (budget_bytes == 0) {
      hold();
      break;
    }
    std::array<iovec, 2 * kGatheredMax> parts;
    std::size_t count = 0;
    std::size_t bytes = 0;
    const auto add = [&](std::byte* begin, std::size_t size) {
      const std::size_t now = std::min(size, budget_bytes - bytes);
      if (now > 0) parts[count++] = {begin, now};
      bytes += now;
    };
    for (auto frame = queue_.begin(); frame != queue_.end() && count + 2 <= parts.size() &&
                                      bytes < std::min(kTurnBytes, budget_bytes);
         ++frame) {
      if (!frame->encoded) encode(*frame);
      const std::size_t of_header = std::min(frame->sent, frame->header_size);
      const std::size_t of_payload = frame->sent - of_header;
      add(frame->header.data() + of_header, frame->header_size - of_header);
      add(const_cast<std::byte*>(frame->payload) + of_payload, frame->payload_bytes() - of_payload);
    }
    Stream::Moved sent = stream_->write(std::span<const iovec>(parts).first(count));
    if (sent.outcome == Stream::Outcome::later) break;
    if (sent.outcome != Stream::Outcome::moved) {
      // The other side may have sent data before it closed: the reader takes them, then ends the
      // lane.
      write_failed_ = true;
      write_error_ = std::move(sent.error);
      break;
    }
    turn += sent.bytes;
    if (turns_ != nullptr) turns_->took(sent.bytes);
    taken(sent.bytes);
  }
  if (!kept_.empty()) trim();
  if (!held_) let_go();
  // There is more: the loop comes back for it.
  if (queue_.empty() && !held_ && turn >= kTurnBytes) refill();
  if (goodbye_sent_ && queue_.empty() && !shut_ && open()) {
    shut_ = true;
    stream_->shut();
  }
  watch();
}

Lane::Sent StreamLane::sent() const {
  if (!open()) return {written_, 0, {}, false, holds_};
  return {written_, stream_->unacknowledged_bytes(), stream_->line(), held_, holds_};
}

void StreamLane::taken(std::size_t bytes) {
  moved_ += bytes;
  written_ += bytes;
  while (bytes > 0) {
    Outgoing& frame = queue_.front();
    const std::size_t left = left_of(frame);
    const std::size_t now = std::min(left, bytes);
    frame.sent += now;
    bytes -= now;
    if (now < left) return;
    frame.shared = stream_->carrier() == Stream::Carrier::shared_memory;
    Outgoing done = std::move(frame);
    queue_.pop_front();
    // The payload is copied before the owner hears that it is not needed any more.
    const bool slice = done.frame.type == FrameType::slice && kind_ == Kind::bulk && !local();
    if (slice && done.turn != Outgoing::Turn::spare) {
      keep(done, written_ - bytes);
    } else if (has_segment(done.frame.type) && done.turn != Outgoing::Turn::spare) {
      bare_until_ = written_ - bytes;
    }
    owner_.lane_sent(done);
  }
}

// ---------------------------------------------------------------------------------- what is kept

/// `end`: where the slice ends in what was written.
void StreamLane::keep(const Outgoing& slice, std::uint64_t end) {
  if (kept_bytes_ + slice.payload_bytes() > kCopiedBytesMax) {
    bare_until_ = end;
    return;
  }
  try {
    Outgoing copy = slice;
    own_payload(copy);
    copy.turn = Outgoing::Turn::again;
    kept_.push_back({end, std::move(copy)});
    kept_bytes_ += slice.payload_bytes();
  } catch (const std::bad_alloc&) {
    bare_until_ = end;
  }
}

void StreamLane::trim() {
  // A connection that has failed tells nothing any more.
  if (!open() || write_failed_) return;
  const std::uint64_t left = std::min<std::uint64_t>(written_, stream_->undelivered_bytes());
  arrived_ = std::max(arrived_, written_ - left);
  while (!kept_.empty() && kept_.front().end <= arrived_) {
    kept_bytes_ -= kept_.front().slice.payload_bytes();
    kept_.pop_front();
  }
}

std::vector<Outgoing> StreamLane::share() {
  trim();
  std::vector<Outgoing> slices;
  std::optional<Outgoing> begun;
  try {
    slices.reserve(kept_.size() + queue_.size());
    const bool has_begun = !queue_.empty() && queue_.front().sent > 0;
    if (has_begun && is_own_slice(queue_.front())) {
      begun = queue_.front();
      if (!begun->owned.empty()) begun->payload = begun->owned.data();
      own_payload(queue_.front());  // the lane goes on with it
      queue_.front().turn = Outgoing::Turn::spare;
    }
  } catch (const std::bad_alloc&) {
    return {};
  }
  const auto add = [&](Outgoing& slice) {
    slice.sent = 0;
    slice.encoded = false;
    slices.push_back(std::move(slice));
  };
  for (Kept& kept : kept_) add(kept.slice);
  kept_.clear();
  kept_bytes_ = 0;
  if (begun) add(*begun);
  std::erase_if(queue_, [&](Outgoing& frame) {
    const bool goes = frame.sent == 0 && is_own_slice(frame);
    if (goes) add(frame);
    return goes;
  });
  watch();
  return slices;
}

/// Of a lane that is about to end.
Leftover StreamLane::leftover() {
  Leftover left;
  left.more = bare_until_ > arrived_ || !loose_.empty() ||
              (in_payload_ && frame_.type != FrameType::slice) ||
              std::any_of(queue_.begin(), queue_.end(), [](const Outgoing& frame) {
                return has_segment(frame.frame.type) && frame.frame.type != FrameType::slice;
              });
  left.slices = share();
  const bool kept = std::any_of(queue_.begin(), queue_.end(), is_own_slice) || !kept_.empty();
  left.more = left.more || kept;  // there was no memory to hand them over
  return left;
}

std::size_t StreamLane::cancel(MemoryToken token) {
  for (Outgoing& frame : queue_) {
    if (frame.token == token && (frame.sent > 0 || !frame.tells)) own_payload(frame);
  }
  std::size_t dropped = 0;
  for (std::deque<Outgoing>* frames : {&queue_, &loose_}) {
    std::erase_if(*frames, [&](const Outgoing& frame) {
      const bool hit = frame.token == token;
      if (hit) dropped += frame.payload_bytes();
      return hit;
    });
  }
  if (in_payload_ && placement_.token == token) placement_ = {};
  watch();
  return dropped;
}

void StreamLane::close() {
  if (!open() || closing_) return;
  closing_ = true;
  moved_before_ = moved_;
  unacknowledged_before_ = stream_->unacknowledged_bytes();
  progress_ = loop_.timer(kHandshakeMs, kHandshakeMs, [this] { watch_progress(); });
  watch();  // the goodbye goes out from the loop: this may be called inside lane_sent
}

void StreamLane::watch_progress() {
  // A slow link may take long to send its rest, and a lane may wait for its turn. A link that moves
  // nothing is given up.
  const std::size_t unacknowledged = stream_->unacknowledged_bytes();
  const bool sends = unacknowledged > 0 && unacknowledged != unacknowledged_before_;
  if (!sends && !held_ && (moved_ == moved_before_ || shut_)) {
    end();
    return owner_.lane_closed(*this);
  }
  moved_before_ = moved_;
  unacknowledged_before_ = unacknowledged;
}

// ------------------------------------------------------------------------------------- reading

void StreamLane::read() {
  std::size_t turn = 0;
  for (int call = 0; call < kTurnCalls && turn < kTurnBytes && open(); ++call) {
    std::array<iovec, 2> parts;
    std::size_t count = 0;
    std::size_t room = 0;
    std::span<std::byte> payload;
    if (closing_) {
      begin_ = end_ = 0;
      parts[count++] = {nowhere().data(), nowhere().size()};
      room = nowhere().size();
    } else if (in_payload_ && placement_.in_parts) {
      const std::size_t before = moved_;
      if (!read_part()) return;
      turn += moved_ - before;
      continue;
    } else {
      if (in_payload_) {
        payload = payload_room();
        parts[count++] = {payload.data(), payload.size()};
        room += payload.size();
      }
      // The buffer follows the payload only where this call can reach its end.
      if (!in_payload_ || payload.size() == frame_.payload_bytes - payload_done_) {
        const std::size_t wanted = wanted_bytes();
        if (wanted > 0) parts[count++] = {buffer_.data() + end_, wanted};
        room += wanted;
      }
    }
    const Stream::Moved got = stream_->read(std::span<const iovec>(parts).first(count));
    if (got.outcome == Stream::Outcome::later) return;
    if (got.outcome == Stream::Outcome::failed) return ended(got.error);
    if (got.outcome == Stream::Outcome::ended) {
      return ended("the other side has closed the connection");
    }
    const std::size_t bytes = got.bytes;
    turn += bytes;
    moved_ += bytes;
    if (!closing_) {
      const std::size_t of_payload = std::min(bytes, payload.size());
      end_ += bytes - of_payload;
      if (of_payload > 0) payload_read(payload.first(of_payload));
      if (open() && !closing_) parse();
    }
    if (bytes < room) return;  // no more bytes have come
  }
}

/// Bytes that a call may read into the buffer. Where payloads are used in place they must not get
/// there: then no more than the rest of a header, or of a message.
std::size_t StreamLane::wanted_bytes() const {
  if (!stream_->in_place()) return buffer_.size() - end_;
  if (in_payload_) return 0;
  const auto rest = std::span<const std::byte>(buffer_).subspan(begin_, end_ - begin_);
  std::size_t whole = kFrameHeaderBytes;
  if (const auto size = frame_header_size(rest); size && size.value() > 0) {
    whole = size.value();
    if (rest.size() >= whole) {
      const auto header = decode_frame_header(rest.first(whole), kPeerMessageBytesMax);
      if (header) whole += header.value().payload_bytes;
    }
  }
  return std::min(whole - std::min(whole, rest.size()), buffer_.size() - end_);
}

/// Shows the owner the next part of a payload where it lies. False: nothing more has come, or the
/// lane is over.
bool StreamLane::read_part() {
  const auto here = stream_->here();
  const std::size_t left = frame_.payload_bytes - payload_done_;
  const std::size_t now = std::min({left, here.size(), kPartBytes});
  if (now == 0) {
    const Stream::Moved end = stream_->peek(nowhere().first(1));
    if (end.outcome == Stream::Outcome::ended) ended("the other side has closed the connection");
    if (end.outcome == Stream::Outcome::failed) ended(end.error);
    return false;
  }
  if (now < left && now % kPartGrain != 0) {
    broken("a part of a number");
    return false;
  }
  std::span<const std::byte> part = here.first(now);
  if (reinterpret_cast<std::uintptr_t>(part.data()) % kPartGrain != 0) {
    std::memcpy(nowhere().data(), part.data(), now);
    part = nowhere().first(now);
  }
  const Placement at = placement_;
  owner_.lane_part(frame_.segment, at, static_cast<std::uint32_t>(payload_done_), part);
  if (!open()) return false;
  stream_->take(now);
  moved_ += now;
  payload_moved(now);
  return open() && !closing_;
}

void StreamLane::ended(const std::string& reason) {
  const bool closing = closing_;
  const bool in_order = goodbye_seen_;
  std::string why = reason;
  if (write_failed_ && !write_error_.empty()) why = write_error_;
  write_failed_ = true;  // what the system says of this connection means nothing any more
  const bool tampered = stream_->refused();
  Leftover left = closing || in_order || tampered ? Leftover{} : leftover();
  end();
  if (closing) return owner_.lane_closed(*this);
  if (tampered && !in_order) return owner_.lane_over(*this, why, true);
  if (!in_order) owner_.lane_lost(*this, why, std::move(left));
}

void StreamLane::broken(const std::string& reason) {
  end();
  owner_.lane_over(*this, "broken framing: " + reason, true);
}

void StreamLane::parse() {
  while (open() && !closing_) {
    if (in_payload_) {
      if (begin_ == end_) break;
      const auto room = payload_room();
      const std::size_t now = std::min(room.size(), end_ - begin_);
      std::memcpy(room.data(), buffer_.data() + begin_, now);
      begin_ += now;
      payload_read(room.first(now));
      continue;
    }
    const auto rest = std::span<const std::byte>(buffer_).subspan(begin_, end_ - begin_);
    const auto size = frame_header_size(rest);
    if (!size) return broken(size.error().text);
    if (size.value() == 0 || rest.size() < size.value()) break;
    if (!begin_frame(rest, size.value())) break;
  }
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
}

/// False: the rest of a message is still to come, or nothing more is read.
bool StreamLane::begin_frame(std::span<const std::byte> bytes, std::size_t header_size) {
  const auto header = decode_frame_header(bytes.first(header_size), kPeerMessageBytesMax);
  if (!header) {
    broken(header.error().text);
    return false;
  }
  if (goodbye_seen_) {
    broken("a frame after the goodbye");
    return false;
  }
  const FrameType type = header.value().type;
  if (kind_ == Kind::bulk && has_message(type)) {
    broken("a message on a bulk lane");
    return false;
  }
  if (kind_ == Kind::small && type == FrameType::joined) {
    broken("the small lane joins nothing");
    return false;
  }
  frame_ = header.value();
  const bool message = has_message(type);
  if (message && bytes.size() - header_size < frame_.payload_bytes) return false;
  begin_ += header_size;
  if (type == FrameType::joined) {
    owner_.lane_joined(*this);
    return open();
  }
  if (type == FrameType::goodbye) {
    goodbye_seen_ = true;
    owner_.lane_over(*this, "the peer has closed the link", false);
    return true;
  }
  if (message) {
    const auto payload = bytes.subspan(header_size, frame_.payload_bytes);
    begin_ += payload.size();
    owner_.lane_received(payload.size(), /*data=*/false);
    if (frame_.has_payload_crc && crc32c(0, payload) != frame_.payload_crc) {
      broken("the checksum of a payload does not fit");
      return false;
    }
    owner_.lane_message(frame_.type, payload);
    return open();
  }
  begin_payload();
  return open();
}

void StreamLane::begin_payload() {
  in_payload_ = true;
  payload_done_ = 0;
  payload_crc_seen_ = 0;
  placement_ = {};
  // A checksum is of the whole payload: before it has been seen no part may be used.
  frame_.segment.in_place = stream_->in_place() && !frame_.has_payload_crc;
  const Placement at = owner_.lane_segment_header(frame_.segment);
  if (!open() || closing_) return;
  placement_ = at;
  if (frame_.payload_bytes == 0) finish_payload();
}

std::span<std::byte> StreamLane::payload_room() {
  const std::size_t left = frame_.payload_bytes - payload_done_;
  if (placement_.to == nullptr) return nowhere().first(std::min(left, nowhere().size()));
  return {placement_.to + payload_done_, left};
}

void StreamLane::payload_read(std::span<const std::byte> bytes) {
  if (frame_.has_payload_crc) payload_crc_seen_ = crc32c(payload_crc_seen_, bytes);
  payload_moved(bytes.size());
}

void StreamLane::payload_moved(std::size_t bytes) {
  payload_done_ += bytes;
  owner_.lane_received(bytes, has_data(frame_));
  if (payload_done_ == frame_.payload_bytes) finish_payload();
}

void StreamLane::finish_payload() {
  in_payload_ = false;
  if (frame_.has_payload_crc && payload_crc_seen_ != frame_.payload_crc) {
    return broken("the checksum of a payload does not fit");
  }
  if (!placement_.drops() || frame_.segment.slice.is_one()) {
    const Placement at = placement_;
    // Another lane may have written behind what this one had read.
    if (frame_.has_payload_crc && at.to != nullptr && owner_.lane_shares(frame_.segment) &&
        crc32c(0, {at.to, frame_.payload_bytes}) != frame_.payload_crc) {
      return broken("the checksum of a payload does not fit");
    }
    owner_.lane_segment(frame_.segment, at);
  }
}

void StreamLane::drop_slice(std::uint64_t number, std::uint32_t offset) {
  const Slice& slice = frame_.segment.slice;
  const bool is_it = in_payload_ && frame_.type == FrameType::slice && slice.number == number &&
                     slice.offset == offset;
  if (is_it) placement_ = {};
}

}  // namespace pccl
