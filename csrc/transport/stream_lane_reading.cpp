// What a lane does with the bytes that come: frames, and where their payloads go.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "base/limits.h"
#include "transport/area.h"
#include "transport/crc32c.h"
#include "transport/stream_lane.h"

namespace pccl {
namespace {

constexpr std::size_t kPartBytes = 128U << 10;  // of a payload that is used in place
constexpr std::size_t kPartGrain = 16;          // the largest element

/// Memory for payload that is not wanted. One for each thread, because it is never read.
std::span<std::byte> nowhere() {
  thread_local std::vector<std::byte> scratch(256U << 10);
  return scratch;
}

}  // namespace

/// Of a lane that takes no turns.
void StreamLane::read() {
  for (in_.begin(); !in_.over() && open();) {
    if (in_payload_ && placement_.in_parts && !closing_) {
      const std::uint64_t before = moved_;
      if (!read_part()) return;
      in_.moved_on(moved_ - before);
      continue;
    }
    move_read();
    stream_->settle();
    if (!settle_read()) return;
  }
}

/// Reads what has come, in one call.
void StreamLane::move_read() {
  std::array<iovec, 2> parts;
  std::size_t count = 0;
  std::span<std::byte> payload;
  room_ = of_payload_ = 0;
  const auto add = [&](std::span<std::byte> part) {
    if (!part.empty()) parts[count++] = {part.data(), part.size()};
    room_ += part.size();
  };
  if (closing_) {
    begin_ = end_ = 0;
    add(nowhere());
  } else {
    if (in_payload_) payload = payload_room();
    if (is_helped()) payload = payload.first(std::min(payload.size(), kSharedStepBytes));
    add(payload);
    // The buffer follows the payload only where this call can reach its end.
    if (!in_payload_ || payload.size() == frame_.payload_bytes - payload_done_) {
      add(std::span(buffer_).subspan(end_, wanted_bytes()));
    }
  }
  in_.moved = stream_->read_apart(std::span<const iovec>(parts).first(count));
  if (in_.moved.outcome != Stream::Outcome::moved) return;
  const std::size_t bytes = in_.moved.bytes;
  moved_ += bytes;
  if (closing_) return;
  of_payload_ = std::min(bytes, payload.size());
  end_ += bytes - of_payload_;
  look_at(payload.first(of_payload_));
}

/// False: no more has come, or the lane is over.
bool StreamLane::settle_read() {
  const std::size_t bytes = in_.moved.bytes;
  in_.moved_on(bytes);
  if (in_.moved.outcome == Stream::Outcome::later) return false;
  if (in_.moved.outcome == Stream::Outcome::moved) {
    if (!closing_) {
      if (of_payload_ > 0) payload_moved(of_payload_);
      if (open() && !closing_) parse();
    }
    return open() && bytes >= room_;
  }
  const bool failed = in_.moved.outcome == Stream::Outcome::failed;
  ended(failed ? in_.moved.error : kOtherClosed);
  return false;
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
    if (end.outcome == Stream::Outcome::ended) ended(kOtherClosed);
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
      look_at(room.first(now));
      payload_moved(now);
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
  if (type == FrameType::reference) {
    take_reference();
  } else {
    begin_payload();
  }
  return open();
}

/// The payload lies in the area of the other side, and is read now, or lent to the owner. If the
/// slot has another generation the sender's run has ended: the segment never arrives, and the owner
/// hears of it if it had given a place.
void StreamLane::take_reference() {
  const std::shared_ptr<const PeerArea> area = stream_->peer_area();
  SegmentHeader& segment = frame_.segment;
  const std::byte* const payload = area ? area->at(segment.area.slot) : nullptr;
  if (payload == nullptr || kind_ != Kind::small) {
    return broken("a reference to memory that was not passed");
  }
  if (!area->holds(segment.area)) return;
  segment.in_place = true;
  Placement at = owner_.lane_segment_header(segment);
  if (!open() || closing_ || at.drops()) return;
  const std::span bytes(payload, segment.bytes);
  if (at.lends) {
    at.lender = area;
  } else if (at.in_parts) {
    owner_.lane_part(segment, at, 0, bytes);
  } else {
    std::memcpy(at.to, bytes.data(), bytes.size());
  }
  if (!open()) return;
  if (!area->holds(segment.area)) return owner_.lane_segment_lost(segment, at);
  owner_.lane_received(bytes.size(), has_data(frame_));
  owner_.lane_segment(segment, at);
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

void StreamLane::look_at(std::span<const std::byte> payload) {
  if (in_payload_ && frame_.has_payload_crc && !payload.empty()) {
    payload_crc_seen_ = crc32c(payload_crc_seen_, payload);
  }
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
