// Channels over TCP: the opening by Gate and Talk, then control frames. All queued frames go out in
// one call; the reader's buffer grows with the bytes that have come, never with what a header
// promises. The memory of all large frames together has a limit (ChannelLimits).
#include "transport/channel.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <limits>

#include "base/limits.h"
#include "base/protocol.h"
#include "base/text.h"
#include "transport/connector.h"
#include "transport/crc32c.h"
#include "transport/framing.h"
#include "transport/gate.h"
#include "transport/handshake.h"
#include "transport/listen.h"
#include "transport/loop.h"
#include "transport/receive_budget.h"
#include "transport/stream.h"
#include "transport/talk.h"

namespace pccl {
namespace {

constexpr std::size_t kReadBytes = 64U << 10;
constexpr int kReadsMax = 16;  // in a row, then other sockets have their turn
constexpr std::size_t kUntrustedMax = 256;
constexpr std::uint64_t kChannelUserTimeoutMs = 30000;
// The dialling side may wait for room at the other side, and Linux counts that time too. The owner
// notices by silence that the other side is gone.
constexpr std::uint64_t kDialledUserTimeoutMs = kLargeWaitMs + 30000;
static_assert(kLargeBytesMax >= kControlBytesMax);  // each is granted some time
constexpr std::size_t kSmallFrameBytes = kFrameHeaderBytes + kHandshakeBytesMax;

/// The connection behind a Channel. Outlives it while it sends its rest.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// Without `budget` (this side has dialled) large frames have no limit together.
  Connection(Loop& loop, std::unique_ptr<Stream> stream, Caller caller, bool trusted,
             const ChannelLimits& limits, std::shared_ptr<ReceiveBudget> budget)
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

  void set_events(Channel::Events events) {
    events_ = std::make_shared<Channel::Events>(std::move(events));
    watch();
  }

  void send(std::span<const std::byte> payload) {
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

  void watch_queue(std::size_t bytes, std::shared_ptr<std::size_t> total,
                   std::function<void()> room) {
    room_below_ = bytes;
    room_ = std::move(room);
    total_ = std::move(total);
    *total_ += queued_bytes_;
  }
  void trust() {
    trusted_ = true;
    if (!closing_) deadline_.reset();
  }
  [[nodiscard]] bool waits_for_trust() const { return !trusted_ && stream_->open(); }

  /// The owner is gone or wants no more: sends the rest on its own.
  void close() {
    events_.reset();
    if (!stream_->open() || closing_) return;
    closing_ = true;
    if (held_back()) give_share();
    loop_.keep(shared_from_this());
    loop_.defer(
        [self = shared_from_this()] {  // this may be inside a callback that reads the payload
          self->in_ = {};
          self->in_end_ = 0;
          self->give_share();
        });
    deadline_ = loop_.timer(kHandshakeMs, 0, [this] { end(); });
    flush();
    watch();
  }
  void abandon() {
    events_.reset();
    if (!closing_) end();
  }
  /// Closes, and says so from the loop.
  void fail(const std::string& reason) {
    if (!stream_->open()) return;
    end();
    loop_.defer([self = shared_from_this(), reason] {
      const auto events = self->events_;
      if (events && events->closed) events->closed(reason);
    });
  }

  [[nodiscard]] const std::string& remote() const { return remote_; }
  [[nodiscard]] const Caller& caller() const { return caller_; }
  [[nodiscard]] const std::string& local_host() const { return local_host_; }
  [[nodiscard]] std::size_t queued_bytes() const { return queued_bytes_; }
  [[nodiscard]] std::uint64_t received_bytes() const { return received_bytes_; }
  [[nodiscard]] bool held_back() const { return share_ && share_->waits(); }
  [[nodiscard]] std::uint64_t acknowledged_bytes() const {
    return stream_->open() ? written_bytes_ - stream_->unacknowledged_bytes() : written_bytes_;
  }

 private:
  void end() {
    deadline_.reset();
    give_share();
    stream_->close();
    queue_.clear();
    count_queued(0);
    if (closing_) {
      loop_.defer([self = shared_from_this()] { self->loop_.release(self.get()); });
    }
  }

  void watch() {
    if (!stream_->open()) return;
    const bool reads = (events_ != nullptr && !held_back()) || closing_;
    stream_->want(reads, !queue_.empty() && !write_failed_);
  }
  void count_queued(std::size_t now) {
    if (total_) *total_ = *total_ + now - queued_bytes_;
    queued_bytes_ = now;
  }
  void tell_room() {
    if (!over_ || queued_bytes_ > room_below_) return;
    over_ = false;
    const auto room = room_;  // the owner may destroy the channel meanwhile
    if (events_) room();
  }

  void flush() {
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

  void read() {
    for (int i = 0; i < kReadsMax && stream_->open() && !held_back(); ++i) {
      make_buffer();
      const Stream::Moved got = stream_->read(std::span(in_).subspan(in_end_, kReadBytes));
      if (got.outcome == Stream::Outcome::later) return;
      if (got.outcome != Stream::Outcome::moved) {
        if (closing_) return end();
        if (got.outcome == Stream::Outcome::ended) {
          return fail("the other side has closed the connection");
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

  /// Grows the buffer to twice the bytes that have come at most, and not beyond the frame.
  void make_buffer() {
    const std::size_t needed = in_end_ + kReadBytes;
    if (in_.size() >= needed) return;
    in_.reserve(std::max(needed, std::min(2 * in_.capacity(), incomplete_ + kReadBytes)));
    in_.resize(needed);
  }

  void parse() {
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

  void take_share() {
    if (!budget_ || share_ || !stream_->open() || closing_) return;
    waited_ms_ = 0;
    share_ =
        std::make_unique<ReceiveBudget::Share>(budget_, incomplete_ - kFrameHeaderBytes, [this] {
          look_later();
          watch();
        });
    look_later();
    watch();
  }
  void give_share() {
    look_.reset();
    share_.reset();
  }
  void look_later() {
    looked_ms_ = loop_.now_ms();
    looked_bytes_ = received_bytes_;
    look_ = loop_.timer(limits_.look_ms, 0, [this] { look(); });
  }
  /// Ends the connection if its message has waited too long for memory, or holds memory and comes
  /// too slowly while another one waits.
  void look() {
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

  Loop& loop_;
  Caller caller_;
  ChannelLimits limits_;
  std::shared_ptr<ReceiveBudget> budget_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Timer> deadline_;  // of trust, or of closing
  std::string remote_;
  std::string local_host_;
  bool payload_crc_;
  bool trusted_;
  bool closing_ = false;
  bool shut_ = false;
  bool write_failed_ = false;
  std::string write_error_;
  std::shared_ptr<Channel::Events> events_;  // shared: a callback may destroy the channel
  std::vector<std::byte> in_;
  std::size_t in_end_ = 0;
  std::size_t incomplete_ = 0;  // length of the frame of which the buffer holds a part
  std::unique_ptr<ReceiveBudget::Share> share_;  // of that frame, if it is large
  std::unique_ptr<Timer> look_;
  std::uint64_t looked_ms_ = 0;
  std::uint64_t looked_bytes_ = 0;
  std::uint64_t waited_ms_ = 0;
  std::uint64_t received_bytes_ = 0;
  std::uint64_t written_bytes_ = 0;
  std::deque<std::vector<std::byte>> queue_;
  std::size_t sent_of_first_ = 0;
  std::size_t queued_bytes_ = 0;
  std::size_t room_below_ = std::numeric_limits<std::size_t>::max();
  std::function<void()> room_;
  bool over_ = false;                   // more than that was queued
  std::shared_ptr<std::size_t> total_;  // of several channels
};

class TcpChannel : public Channel {
 public:
  explicit TcpChannel(std::shared_ptr<Connection> connection)
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
  std::shared_ptr<Connection> connection_;
};

class TcpListener : public ChannelListener {
 public:
  TcpListener(Loop& loop, std::vector<Socket> sockets,
              std::function<void(std::unique_ptr<Channel>)> accepted,
              std::shared_ptr<const Entrance> entrance, const ChannelLimits& limits)
      : loop_(loop),
        accepted_(std::move(accepted)),
        entrance_(std::move(entrance)),
        limits_(limits),
        budget_(std::make_shared<ReceiveBudget>(limits.large_bytes_max)),
        gate_(loop, std::move(sockets), Purpose::channel,
              [this](const std::shared_ptr<Talk>& talk) { opened(talk); }) {}

  [[nodiscard]] std::uint16_t port() const override { return gate_.port(); }

 private:
  void opened(const std::shared_ptr<Talk>& talk) {
    admit(loop_, talk, entrance_, [this, weak = std::weak_ptr(talk)](Caller caller) {
      if (const auto open = weak.lock(); open && !open->over()) admitted(*open, std::move(caller));
    });
  }
  void admitted(Talk& talk, Caller caller) {
    auto connection = std::make_shared<Connection>(loop_, talk.take(), std::move(caller), false,
                                                   limits_, budget_);
    std::erase_if(untrusted_, [](const auto& weak) {
      const auto held = weak.lock();
      return !held || !held->waits_for_trust();
    });
    if (untrusted_.size() >= kUntrustedMax) {
      if (const auto oldest = untrusted_.front().lock()) {
        oldest->fail("too many connections that wait to be accepted");
      }
      untrusted_.pop_front();
    }
    untrusted_.push_back(connection);
    accepted_(std::make_unique<TcpChannel>(std::move(connection)));
  }

  Loop& loop_;
  std::function<void(std::unique_ptr<Channel>)> accepted_;
  std::shared_ptr<const Entrance> entrance_;
  ChannelLimits limits_;
  std::shared_ptr<ReceiveBudget> budget_;
  std::deque<std::weak_ptr<Connection>> untrusted_;  // oldest first
  Gate gate_;
};

class TcpDial : public Dial {
 public:
  TcpDial(Loop& loop, const std::string& address, std::uint64_t timeout_ms,
          std::function<void(Result<std::unique_ptr<Channel>>)> done, const Entry& entry)
      : loop_(loop), address_(address), entry_(entry), done_(std::move(done)) {
    connector_ = std::make_unique<Connector>(
        loop, std::vector{address}, Connector::From::user, /*small_packets=*/true,
        kDialledUserTimeoutMs,
        Connector::Events{
            [this](Socket socket, const std::string& at) { connected(std::move(socket), at); },
            [this](const std::string& what, bool) {
              finish({refusal_.failed() ? refusal_.code : ErrorCode::unreachable, unnamed(what)});
            }});
    deadline_ = loop_.timer(timeout_ms, 0, [this, timeout_ms] {
      finish({ErrorCode::unreachable,
              report() + " (tried for " + std::to_string(timeout_ms) + " ms)"});
    });
  }
  ~TcpDial() override { drop_talk(); }

  [[nodiscard]] std::string report() const override {
    std::string text = connector_->report();
    if (talk_) add_to_list(text, at_ + ": " + kNoAnswer, "; ");
    return unnamed(text);
  }
  [[nodiscard]] bool kept_out() const override { return kept_out_; }

 private:
  /// The text without the dialled address at its beginning: the caller names this address.
  [[nodiscard]] std::string unnamed(const std::string& text) const {
    return text.starts_with(address_ + ": ") ? text.substr(address_.size() + 2) : text;
  }

  void connected(Socket socket, const std::string& at) {
    at_ = at;
    talk_ = std::make_shared<Talk>(loop_, std::make_unique<SocketStream>(loop_, std::move(socket)),
                                   kHandshakeMs);
    talk_->on_failed([this](const std::string& reason) {
      if (talk_->not_proven()) {
        kept_out_ = true;
        refusal_.code = ErrorCode::refused;
      }
      try_next(reason);
    });
    talk_->expect(
        kOpeningBytes, [this](std::span<const std::byte> bytes) { answered(bytes); },
        may_be_opening);
    talk_->send(encode_opening({kProtocolVersion, Purpose::channel}));
  }

  void answered(std::span<const std::byte> bytes) {
    const auto opening = decode_opening(bytes);
    std::string wrong;
    if (!opening) {
      wrong = opening.error().text;
    } else if (opening.value().version != kProtocolVersion) {
      wrong = "it speaks protocol version " + std::to_string(opening.value().version) +
              ", this process " + std::to_string(kProtocolVersion);
    } else if (opening.value().purpose != Purpose::channel) {
      wrong = "a pccl peer answers there, not a master";
    }
    if (!wrong.empty()) {
      refusal_.code = ErrorCode::refused;
      return try_next(wrong);
    }
    enter(loop_, talk_, entry_, [this](const Error& error) { entered(error); });
  }

  void entered(const Error& error) {
    if (error.failed()) {
      kept_out_ = error.code == ErrorCode::refused;
      refusal_.code = ErrorCode::refused;
      return try_next(error.text);
    }
    finish(std::unique_ptr<Channel>(std::make_unique<TcpChannel>(std::make_shared<Connection>(
        loop_, talk_->take(), Caller{}, true, ChannelLimits{}, nullptr))));
  }

  void try_next(const std::string& why) {
    if (why == kNotPccl) refusal_.code = ErrorCode::refused;
    drop_talk();
    connector_->next(at_, why == kNotPccl ? kAnotherProgram : why);
  }

  void drop_talk() {
    if (!talk_) return;
    talk_->on_failed(nullptr);
    if (!talk_->over()) talk_->drop();
    talk_.reset();
  }

  void finish(Result<std::unique_ptr<Channel>> result) {
    deadline_.reset();
    drop_talk();
    connector_.reset();
    const auto done = std::move(done_);  // the callback may destroy this
    done(std::move(result));
  }

  Loop& loop_;
  std::string address_;
  Entry entry_;
  bool kept_out_ = false;
  std::function<void(Result<std::unique_ptr<Channel>>)> done_;
  std::unique_ptr<Connector> connector_;
  std::unique_ptr<Timer> deadline_;
  std::shared_ptr<Talk> talk_;
  std::string at_;
  Error refusal_;
};

}  // namespace

Result<std::unique_ptr<ChannelListener>> listen_channels(
    Loop& loop, const std::string& host, std::uint16_t port,
    std::function<void(std::unique_ptr<Channel>)> accepted, const ChannelLimits& limits,
    std::shared_ptr<const Entrance> entrance) {
  auto sockets = listen_on(loop, host.empty() ? std::vector<std::string>{} : std::vector{host},
                           port, port, kChannelUserTimeoutMs);
  if (!sockets) return sockets.error();
  return std::unique_ptr<ChannelListener>(std::make_unique<TcpListener>(
      loop, std::move(sockets).value(), std::move(accepted), std::move(entrance), limits));
}

std::unique_ptr<Dial> dial_channel(Loop& loop, const std::string& address, std::uint64_t timeout_ms,
                                   std::function<void(Result<std::unique_ptr<Channel>>)> done,
                                   const Entry& entry) {
  return std::make_unique<TcpDial>(loop, address, timeout_ms, std::move(done), entry);
}

}  // namespace pccl
