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
constexpr std::size_t kRefillBytes = 512U << 10;  // taken ahead from the shared queue
// Under a rate a message waits so long behind segments that it must not overtake: a sixth of the
// silence time-out, since a question and its answer may each wait at two processes.
constexpr std::uint64_t kMessageWaitMs = 5000;
constexpr std::size_t kNoBudget = ~std::size_t{0};
constexpr std::size_t kCopiedBytesMax = 8U << 20;  // twice what a socket holds by default
static_assert(kSmallBufferBytes >= kFrameHeaderBytes + kRelayBytesMax);

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
  return frame.frame.type == FrameType::slice && frame.copy != Outgoing::Copy::spare;
}

std::size_t left_of(const Outgoing& frame) {
  return frame.header_size + frame.payload_bytes() - frame.sent;
}

}  // namespace

StreamLane::StreamLane(Loop& loop, LaneOwner& owner, Kind kind, std::unique_ptr<Stream> stream,
                       bool payload_crc, RateQueue* rate)
    : loop_(loop),
      owner_(owner),
      kind_(kind),
      stream_(std::move(stream)),
      payload_crc_(payload_crc),
      buffer_(kind == Kind::small ? kSmallBufferBytes : kBulkBufferBytes),
      rate_queue_(rate) {
  stream_->on_ready([this](bool readable, bool writable) { ready(readable, writable); });
}

StreamLane::~StreamLane() {
  let_go();
  loop_.turns().leave(*this);
}

void StreamLane::start() {
  started_ = true;
  watch();
}

void StreamLane::ready(bool readable, bool writable) {
  if (!takes_turns()) return move_all(readable, writable);
  // Lanes under one rate ask for their parts of it one after the other.
  if (writable && rate_queue_ != nullptr) flush();
  in_.goes_on = in_.goes_on || readable;
  out_.goes_on = out_.goes_on || (writable && rate_queue_ == nullptr);
  if (!has_turn_ && (in_.goes_on || out_.goes_on)) loop_.turns().enter(*this);
}

void StreamLane::move_all(bool readable, bool writable) {
  if (writable) flush();
  if (readable && open()) read();
}

// --------------------------------------------------------------------------------------- turns

bool StreamLane::prepare() {
  if (!takes_turns()) {  // it has begun to use memory in place while it waited
    move_all(in_.goes_on, std::exchange(out_.goes_on, false));
    return false;
  }
  if (!std::exchange(has_turn_, true)) {
    in_.begin();
    out_.begin();
  }
  out_.moves = out_.goes_on && !out_.over() && prepare_write();
  in_.moves = in_.goes_on && !in_.over() && open();
  // What asks for more while the step is under way is not forgotten.
  if (out_.moves) out_.goes_on = false;
  if (in_.moves) in_.goes_on = false;
  writes_in_turn_ = writes_in_turn_ || out_.moves;
  reads_on_loop_ = in_.moves && in_payload_ && frame_.type == FrameType::slice &&
                   owner_.lane_shares(frame_.segment);
  return out_.moves || in_.moves;
}

std::size_t StreamLane::move() {
  const std::uint64_t before = moved_;
  if (out_.moves) move_write();
  if (in_.moves && !reads_on_loop_) move_read();
  return moved_ - before;
}

void StreamLane::settle() {
  if (!open()) return;
  if (reads_on_loop_) move_read();
  stream_->settle();
  if (std::exchange(out_.moves, false)) {
    out_.bytes += out_.moved.bytes;
    if (settle_write()) out_.goes_on = true;
  }
  if (std::exchange(in_.moves, false) && open() && settle_read()) in_.goes_on = true;
}

void StreamLane::rest() {
  has_turn_ = false;
  in_.goes_on = false;
  const bool more = std::exchange(out_.goes_on, false);
  if (std::exchange(writes_in_turn_, false) || more) rest_write(more);
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
  last_.reset();
  let_go();
  loop_.turns().leave(*this);
  has_turn_ = false;
  stream_->close();
  queue_.clear();
  sent_.clear();
  loose_.clear();
  kept_.clear();
  kept_bytes_ = 0;
}

// ------------------------------------------------------------------------------------- writing

void StreamLane::send(Outgoing frame) {
  if (!open() || write_failed_) return;
  if (rate_queue_ != nullptr && is_loose(frame)) {
    loose_.push_back(std::move(frame));
    if (queue_.empty() && !held_) flush();
    return;
  }
  queue_.push_back(std::move(frame));
  if (queue_.size() == 1 || held_) flush();
}

/// Takes as many of the small segments that wait as the rate allows. False: they go on waiting.
bool StreamLane::refill_loose() {
  const std::size_t allowed = rate_queue_->allowed(*this);
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
  if (rate_queue_ == nullptr) return kNoBudget;
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
  const std::size_t allowed = rate_queue_->allowed(*this);
  Outgoing& next = queue_.front();
  if (!next.encoded) encode(next);
  const bool whole = kind_ == Kind::small && next.payload_bytes() <= kSmallSegmentBytesMax;
  return allowed > 0 && whole ? std::max(allowed, left_of(next)) : allowed;
}

void StreamLane::hold() {
  if (!std::exchange(held_, true)) ++holds_;
  rate_queue_->wait(*this);
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

/// The lane does not wait in rate_queue_ any more.
void StreamLane::let_go() {
  if (rate_queue_ == nullptr) return;
  held_ = false;
  patience_.reset();
  if (queue_.empty()) presses_ = false;
  rate_queue_->leave(*this);
}

void StreamLane::flush() {
  // What several threads may write goes in turns, but for a first piece, which leaves at once.
  const bool in_turns = is_helped() && rate_queue_ == nullptr;
  if (out_.moves || (in_turns && loop_.turns().serving())) {
    if (queue_.empty() && open() && !write_failed_) refill();  // the lane's share of what waits
    return ready(/*readable=*/false, /*writable=*/true);
  }
  const std::size_t most = in_turns ? 1 : kTurnBytes;
  std::size_t written = 0;
  bool more = true;
  while (more && written < most && prepare_write()) {
    move_write();
    written += out_.moved.bytes;
    more = settle_write();
  }
  more = more && written >= most;
  if (more && in_turns) return ready(/*readable=*/false, /*writable=*/true);
  rest_write(more);
}

/// Puts frames into the queue. False: there are none, or they have to wait.
bool StreamLane::prepare_write() {
  held_ = false;
  if (!open() || write_failed_) return false;
  if (queue_.empty()) refill();
  if (queue_.empty()) return false;
  budget_ = is_helped() ? std::min(budget(), kSharedStepBytes) : budget();
  if (budget_ == 0) hold();
  return budget_ > 0;
}

/// Writes as much of the queue as the stream takes in one call.
void StreamLane::move_write() {
  std::array<iovec, 2 * kGatheredMax> parts;
  std::size_t count = 0;
  std::size_t bytes = 0;
  const auto add = [&](std::byte* begin, std::size_t size) {
    const std::size_t now = std::min(size, budget_ - bytes);
    if (now > 0) parts[count++] = {begin, now};
    bytes += now;
  };
  for (auto frame = queue_.begin();
       frame != queue_.end() && count + 2 <= parts.size() && bytes < std::min(kTurnBytes, budget_);
       ++frame) {
    if (!frame->encoded) encode(*frame);
    const std::size_t of_header = std::min(frame->sent, frame->header_size);
    const std::size_t of_payload = frame->sent - of_header;
    add(frame->header.data() + of_header, frame->header_size - of_header);
    add(const_cast<std::byte*>(frame->payload) + of_payload, frame->payload_bytes() - of_payload);
  }
  out_.moved = {};
  if (count == 0) return;  // they were cancelled
  out_.moved = stream_->write_apart(std::span<const iovec>(parts).first(count));
  if (out_.moved.outcome == Stream::Outcome::moved) taken(out_.moved.bytes);
}

/// False: the stream takes no more now, or never again.
bool StreamLane::settle_write() {
  if (out_.moved.outcome == Stream::Outcome::later) return false;
  if (out_.moved.outcome != Stream::Outcome::moved) {
    // The other side may have sent data before it closed: the reader takes them, then ends the
    // lane.
    write_failed_ = true;
    write_error_ = std::move(out_.moved.error);
    // A connection that goes on to live (the system could not read the memory that it was to send)
    // has no end for the reader to see.
    if (!closing_) give_up_later();
    return false;
  }
  if (rate_queue_ != nullptr) rate_queue_->took(out_.moved.bytes);
  while (!sent_.empty()) {
    const Outgoing done = std::move(sent_.front());
    sent_.pop_front();
    owner_.lane_sent(done);
  }
  return true;
}

/// Without memory for a timer the other side is told that nothing more comes: it ends its lane.
void StreamLane::give_up_later() {
  try {
    last_ = loop_.timer(kHandshakeMs, 0, [this] { ended(write_error_); });
  } catch (const std::bad_alloc&) {
    stream_->shut();
  }
}

/// `more`: there may be more, for which the loop has to come back.
void StreamLane::rest_write(bool more) {
  if (!kept_.empty()) trim();
  if (!held_) let_go();
  if (queue_.empty() && !held_ && more) refill();
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
    // The payload is copied before the owner hears that it is not needed any more.
    const bool slice = frame.frame.type == FrameType::slice && kind_ == Kind::bulk && !local();
    if (slice && frame.copy != Outgoing::Copy::spare) {
      keep(frame, written_ - bytes);
    } else if (has_segment(frame.frame.type) && frame.copy != Outgoing::Copy::spare) {
      bare_until_ = written_ - bytes;
    }
    sent_.push_back(std::move(frame));
    queue_.pop_front();
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
    copy.copy = Outgoing::Copy::again;
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
      // Both go on from a copy: when one has brought the slice over, the owner may write to its
      // memory, and the other one would end with a checksum that does not fit.
      begun = queue_.front();
      own_payload(*begun);
      own_payload(queue_.front());
      queue_.front().copy = Outgoing::Copy::spare;
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
  for (std::deque<Outgoing>* frames : {&queue_, &loose_, &sent_}) {
    std::erase_if(*frames, [&](const Outgoing& frame) {
      // Of slices that are sent the link hears, whatever becomes of the memory.
      const bool hit = frame.token == token && (frame.tells || frames != &sent_);
      if (hit) dropped += frame.payload_bytes();
      return hit;
    });
  }
  if (in_payload_ && placement_.token == token) placement_ = {};
  watch();
  return dropped;
}

void StreamLane::close(std::uint64_t quiet_ms) {
  if (!open()) return;
  quiet_ms_ = quiet_ms;
  const std::uint64_t look_ms = std::max<std::uint64_t>(1, quiet_ms / 4);
  progress_ = loop_.timer(look_ms, look_ms, [this] { watch_progress(); });
  if (std::exchange(closing_, true)) return;
  last_.reset();
  moved_at_ms_ = loop_.now_ms();
  written_before_ = written_;
  unacknowledged_before_ = stream_->unacknowledged_bytes();
  watch();  // the goodbye goes out from the loop: this may be called inside lane_sent
}

void StreamLane::watch_progress() {
  // A slow link may take long to send its rest, and a lane may wait for its turn. A link that sends
  // nothing is given up, whatever comes over it.
  const std::size_t unacknowledged = stream_->unacknowledged_bytes();
  const bool sends = unacknowledged > 0 && unacknowledged != unacknowledged_before_;
  const bool moves = sends || held_ || (written_ != written_before_ && !shut_);
  if (moves) moved_at_ms_ = loop_.now_ms();
  if (!moves && loop_.now_ms() - moved_at_ms_ >= quiet_ms_) {
    gave_up_ = true;
    end();
    return owner_.lane_closed(*this);
  }
  written_before_ = written_;
  unacknowledged_before_ = unacknowledged;
}

}  // namespace pccl
