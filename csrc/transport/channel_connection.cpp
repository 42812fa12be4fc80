#include "transport/channel_connection.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/limits.h"
#include "base/text.h"
#include "transport/crc32c.h"
#include "transport/framing.h"

namespace pccl {
namespace {

constexpr std::size_t kReadBytes = 64U << 10;
constexpr int kReadsMax = 16;                       // in a row, then other sockets have their turn
static_assert(kLargeBytesMax >= kControlBytesMax);  // each is granted some time
constexpr std::size_t kSmallFrameBytes = kFrameHeaderBytes + kHandshakeBytesMax;

class TcpChannel : public Channel {
 public:
  explicit TcpChannel(std::shared_ptr<ChannelConnection> connection)
      : connection_(std::move(connection)) {}
  // NOLINTNEXTLINE(bugprone-exception-escape): without memory the process ends here
  ~TcpChannel() override { connection_->abandon(); }

  void set_events(Events events) override { connection_->set_events(std::move(events)); }
  void send(std::span<const std::byte> payload) override { connection_->send(payload); }
  void watch_queue(std::size_t bytes, std::shared_ptr<std::size_t> total,
                   std::function<void()> room) override {
    connection_->watch_queue(bytes, std::move(total), std::move(room));
  }
  void trust() override { connection_->trust(); }
  void close() override { connection_->close(); }
  [[nodiscard]] const std::string& remote() const override { return connection_->remote(); }
  [[nodiscard]] Caller caller() const override { return connection_->caller(); }
  [[nodiscard]] const std::string& local_host() const override { return connection_->local_host(); }
  [[nodiscard]] std::size_t queued_bytes() const override { return connection_->queued_bytes(); }
  [[nodiscard]] bool held_back() const override { return connection_->held_back(); }
  [[nodiscard]] std::uint64_t received_bytes() const override {
    return connection_->received_bytes();
  }
  [[nodiscard]] std::uint64_t acknowledged_bytes() const override {
    return connection_->acknowledged_bytes();
  }

 private:
  std::shared_ptr<ChannelConnection> connection_;
};

}  // namespace

ChannelConnection::ChannelConnection(Loop& loop, std::unique_ptr<Stream> stream, Caller caller,
                                     bool trusted, const ChannelLimits& limits,
                                     std::shared_ptr<ReceiveBudget> budget)
    : loop_(loop),
      caller_(std::move(caller)),
      limits_(limits),
      budget_(std::move(budget)),
      stream_(std::move(stream)),
      remote_(stream_->remote()),
      local_host_(stream_->local_host()),
      payload_crc_(!stream_->same_machine() && !stream_->encrypted()),
      trusted_(trusted) {
  stream_->on_ready([this](bool readable, bool writable) {
    const auto self = shared_from_this();
    if (writable) {
      flush();
      tell_room();
    }
    if (readable && stream_->open()) read();
  });
  if (!trusted_) {
    deadline_ =
        loop_.timer(kHandshakeMs, 0, [this] { fail("not accepted within its handshake time"); });
  }
}

void ChannelConnection::set_events(Channel::Events events) {
  events_ = std::make_shared<Channel::Events>(std::move(events));
  watch();
}

void ChannelConnection::send(std::span<const std::byte> payload) {
  if (!stream_->open() || closing_) return;
  FrameHeader header;
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  header.has_payload_crc = payload_crc_;
  if (payload_crc_) header.payload_crc = crc32c(0, payload);
  HeaderBytes bytes;
  const std::size_t size = encode_frame_header(header, bytes);
  std::vector<std::byte>& frame = queue_.emplace_back();
  frame.reserve(size + payload.size());
  frame.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
  frame.insert(frame.end(), payload.begin(), payload.end());
  count_queued(queued_bytes_ + frame.size());
  if (queue_.size() == 1) flush();
  over_ = over_ || queued_bytes_ > room_below_;
}

void ChannelConnection::watch_queue(std::size_t bytes, std::shared_ptr<std::size_t> total,
                                    std::function<void()> room) {
  room_below_ = bytes;
  room_ = std::move(room);
  total_ = std::move(total);
  *total_ += queued_bytes_;
}

void ChannelConnection::trust() {
  trusted_ = true;
  if (!closing_) deadline_.reset();
}

void ChannelConnection::close() {
  events_.reset();
  if (!stream_->open() || closing_) return;
  closing_ = true;
  if (held_back()) give_share();
  loop_.keep(shared_from_this());
  loop_.defer([self = shared_from_this()] {  // this may be inside a callback that reads the payload
    self->in_ = {};
    self->in_end_ = 0;
    self->give_share();
  });
  deadline_ = loop_.timer(kHandshakeMs, 0, [this] { end(); });
  flush();
  watch();
}

void ChannelConnection::abandon() {
  events_.reset();
  if (!closing_) end();
}

void ChannelConnection::fail(const std::string& reason) {
  if (!stream_->open()) return;
  end();
  loop_.defer([self = shared_from_this(), reason] {
    const auto events = self->events_;
    if (events && events->closed) events->closed(reason);
  });
}

void ChannelConnection::end() {
  deadline_.reset();
  give_share();
  stream_->close();
  queue_.clear();
  count_queued(0);
  if (closing_) {
    loop_.defer([self = shared_from_this()] { self->loop_.release(self.get()); });
  }
}

void ChannelConnection::watch() {
  if (!stream_->open()) return;
  const bool reads = (events_ != nullptr && !held_back()) || closing_;
  stream_->want(reads, !queue_.empty() && !write_failed_);
}

void ChannelConnection::count_queued(std::size_t now) {
  if (total_) *total_ = *total_ + now - queued_bytes_;
  queued_bytes_ = now;
}

void ChannelConnection::tell_room() {
  if (!over_ || queued_bytes_ > room_below_) return;
  over_ = false;
  const auto room = room_;  // the owner may destroy the channel meanwhile
  if (events_) room();
}

void ChannelConnection::flush() {
  while (!queue_.empty() && !write_failed_) {
    std::array<iovec, kGatheredMax> parts;
    std::size_t count = 0;
    for (auto frame = queue_.begin(); frame != queue_.end() && count < kGatheredMax; ++frame) {
      const std::size_t skip = count == 0 ? sent_of_first_ : 0;
      parts[count++] = {frame->data() + skip, frame->size() - skip};
    }
    Stream::Moved sent = stream_->write(std::span<const iovec>(parts).first(count));
    if (sent.outcome == Stream::Outcome::later) break;
    if (sent.outcome != Stream::Outcome::moved) {
      // The other side may have sent data before it closed: the reader takes them, then ends
      // this.
      write_failed_ = true;
      write_error_ = std::move(sent.error);
      queue_.clear();
      count_queued(0);
      break;
    }
    count_queued(queued_bytes_ - sent.bytes);
    written_bytes_ += sent.bytes;
    sent_of_first_ += sent.bytes;
    while (!queue_.empty() && sent_of_first_ >= queue_.front().size()) {
      sent_of_first_ -= queue_.front().size();
      queue_.pop_front();
    }
  }
  if (closing_ && queue_.empty() && !shut_) {
    shut_ = true;
    stream_->shut();
  }
  watch();
}

void ChannelConnection::read() {
  for (int i = 0; i < kReadsMax && stream_->open() && !held_back(); ++i) {
    make_buffer();
    const Stream::Moved got = stream_->read(std::span(in_).subspan(in_end_, kReadBytes));
    if (got.outcome == Stream::Outcome::later) return;
    if (got.outcome != Stream::Outcome::moved) {
      if (closing_) return end();
      if (got.outcome == Stream::Outcome::ended) {
        return fail(kOtherClosed);
      }
      return fail(write_error_.empty() ? got.error : write_error_);
    }
    if (closing_) continue;
    in_end_ += got.bytes;
    received_bytes_ += got.bytes;
    parse();
    if (got.bytes < kReadBytes) return;  // no more bytes have come
  }
}

void ChannelConnection::make_buffer() {
  const std::size_t needed = in_end_ + kReadBytes;
  if (in_.size() >= needed) return;
  in_.reserve(std::max(needed, std::min(2 * in_.capacity(), incomplete_ + kReadBytes)));
  in_.resize(needed);
}

void ChannelConnection::parse() {
  std::size_t at = 0;
  incomplete_ = 0;
  while (stream_->open() && !closing_) {
    const auto rest = std::span<const std::byte>(in_).subspan(at, in_end_ - at);
    if (rest.size() < kFrameHeaderBytes) break;
    const auto header_size = frame_header_size(rest);
    if (!header_size) return fail(header_size.error().text);
    if (header_size.value() != kFrameHeaderBytes) return fail("a frame that has no place here");
    const auto header = decode_frame_header(rest.first(kFrameHeaderBytes),
                                            trusted_ ? kControlBytesMax : kHandshakeBytesMax);
    if (!header) return fail(header.error().text);
    if (header.value().type != FrameType::control) return fail("a frame that has no place here");
    const std::size_t size = kFrameHeaderBytes + header.value().payload_bytes;
    if (rest.size() < size) {
      incomplete_ = size;
      break;
    }
    const auto payload = rest.subspan(kFrameHeaderBytes, header.value().payload_bytes);
    if (header.value().has_payload_crc && crc32c(0, payload) != header.value().payload_crc) {
      return fail("the checksum of a payload does not fit");
    }
    at += size;
    const auto events = events_;
    if (events && events->arrived) events->arrived(payload);
  }
  if (at > 0) {
    std::memmove(in_.data(), in_.data() + at, in_end_ - at);
    in_end_ -= at;
  }
  if (at > 0 && in_.size() > kSmallFrameBytes) {
    in_.resize(in_end_);
    in_.shrink_to_fit();
  }
  if (at > 0) give_share();
  if (incomplete_ > kSmallFrameBytes && in_end_ >= kSmallFrameBytes) take_share();
}

void ChannelConnection::take_share() {
  if (!budget_ || share_ || !stream_->open() || closing_) return;
  waited_ms_ = 0;
  share_ = std::make_unique<ReceiveBudget::Share>(budget_, incomplete_ - kFrameHeaderBytes, [this] {
    look_later();
    watch();
  });
  look_later();
  watch();
}

void ChannelConnection::give_share() {
  look_.reset();
  share_.reset();
}

void ChannelConnection::look_later() {
  looked_ms_ = loop_.now_ms();
  looked_bytes_ = received_bytes_;
  look_ = loop_.timer(limits_.look_ms, 0, [this] { look(); });
}

void ChannelConnection::look() {
  const bool slow = received_bytes_ - looked_bytes_ < limits_.look_bytes_min;
  // A process that was stopped has not read.
  const bool stopped = loop_.now_ms() - looked_ms_ > 2 * limits_.look_ms;
  waited_ms_ += limits_.look_ms;
  const std::string what =
      "a message of " + std::to_string(incomplete_ - kFrameHeaderBytes) + " bytes ";
  if (held_back()) {
    if (waited_ms_ >= limits_.wait_ms) {
      return fail(what + "has waited " + seconds(waited_ms_) + " for room");
    }
  } else if (slow && !stopped && budget_->any_waits()) {
    return fail(what + "comes too slowly, while others wait for room");
  }
  look_later();
}

std::unique_ptr<Channel> channel_over(std::shared_ptr<ChannelConnection> connection) {
  return std::make_unique<TcpChannel>(std::move(connection));
}

}  // namespace pccl
