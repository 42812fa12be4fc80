#include "transport/shared_stream.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "transport/area.h"
#include "transport/bytes.h"
#include "transport/fd_registry.h"
#include "transport/local_socket.h"
#include "transport/shared_memory.h"
#include "transport/sys.h"

namespace pccl {
namespace {

constexpr std::size_t kMessageBytes = 8;
constexpr std::byte kYes{1};
constexpr std::byte kNo{2};
// Once the memory is there each byte rings. Two say something besides.
constexpr std::byte kRings{1};
constexpr std::byte kPassesArea{2};
constexpr std::byte kHasMapped{3};
constexpr const char* kTakesNothing = "the socket takes no bytes";
constexpr const char* kLies = "the other process writes what cannot be into the shared memory";

/// What has come with bytes of the socket.
struct Passed {
  Passed() = default;
  Passed(const Passed&) = delete;
  Passed& operator=(const Passed&) = delete;
  ~Passed() {
    if (descriptor >= 0) ::close(descriptor);
  }
  int descriptor = -1;
};

class SharedStream final : public Stream, private Loop::Watched {
 public:
  enum class State : std::uint8_t {
    offering,  // waits for the acceptor's answer
    awaiting,  // waits for the dialler's memory
    shared,
    plain  // bytes go over the socket
  };
  SharedStream(Loop& loop, std::unique_ptr<Stream> socket, State state)
      : loop_(loop), socket_(std::move(socket)), state_(state) {
    socket_->on_ready([this](bool readable, bool writable) { socket_ready(readable, writable); });
    socket_->want(true, false);
    loop_.watch(*this);
  }
  ~SharedStream() override { close(); }
  SharedStream(const SharedStream&) = delete;
  SharedStream& operator=(const SharedStream&) = delete;

  void offer(std::size_t ring_bytes);

  using Stream::read;
  using Stream::write;
  [[nodiscard]] Moved read(std::span<const iovec> parts) override;
  [[nodiscard]] Moved write(std::span<const iovec> parts) override;
  [[nodiscard]] std::size_t unacknowledged_bytes() const override {
    if (state_ == State::plain) return socket_->unacknowledged_bytes();
    return memory_ ? writer_->unread() : 0;
  }
  [[nodiscard]] Moved peek(std::span<std::byte> into) override;
  [[nodiscard]] bool in_place() const override { return state_ == State::shared; }
  [[nodiscard]] std::span<const std::byte> here() override;
  void take(std::size_t bytes) override {
    reader_->take(bytes);
    if (reader_->wakes_writer()) ring();
  }
  void shut() override { socket_->shut(); }
  void on_ready(Ready ready) override {
    ready_ = std::make_shared<Ready>(std::move(ready));
    want(false, false);
  }
  void want(bool read, bool write) override {
    want_read_ = read;
    want_write_ = write;
    if (state_ == State::plain) socket_->want(read, write);
  }
  void close() override;
  [[nodiscard]] bool open() const override { return socket_->open(); }
  [[nodiscard]] std::string remote() const override { return socket_->remote(); }
  [[nodiscard]] std::string remote_host() const override { return socket_->remote_host(); }
  [[nodiscard]] std::string local_host() const override { return socket_->local_host(); }
  [[nodiscard]] bool same_machine() const override { return true; }
  [[nodiscard]] bool loopback() const override { return true; }
  [[nodiscard]] Carrier carrier() const override {
    return state_ == State::shared ? Carrier::shared_memory : Carrier::unix_socket;
  }
  [[nodiscard]] std::shared_ptr<const PeerArea> peer_area() const override { return peer_area_; }
  void lend(std::shared_ptr<OwnArea> own) override {
    own_ = std::move(own);
    if (state_ == State::shared) pass_area();
  }
  [[nodiscard]] bool lends() const override { return lends_; }

 private:
  // Loop::Watched
  [[nodiscard]] bool look() override;
  [[nodiscard]] bool sleep() override;
  void wake() override;

  void socket_ready(bool readable, bool writable);
  void take_answer();
  void take_memory();
  [[nodiscard]] bool receive_message(Passed& passed);
  void pass_area();
  void take_area(int descriptor);
  void begin(SharedMemory memory);
  void go_plain();
  void hear_bell();
  /// A socket that takes no byte holds some that the other side has not read: it will wake.
  bool ring(std::byte what = kRings) { return socket_->write(std::span(&what, 1)).bytes == 1; }
  [[nodiscard]] bool readable() const;
  [[nodiscard]] bool writable() const;
  [[nodiscard]] Moved nothing() const {
    if (!failure_.empty()) return {Outcome::failed, 0, failure_};
    return {state_ == State::shared && socket_over_ ? Outcome::ended : Outcome::later, 0, {}};
  }

  Loop& loop_;
  std::unique_ptr<Stream> socket_;
  State state_;
  std::array<std::byte, kMessageBytes> message_{};
  std::optional<SharedMemory> offered_;
  std::optional<SharedMemory> memory_;
  std::optional<RingWriter> writer_;
  std::optional<RingReader> reader_;
  std::shared_ptr<Ready> ready_;
  bool want_read_ = false;
  bool want_write_ = false;
  std::shared_ptr<OwnArea> own_;               // until it is passed
  std::shared_ptr<const PeerArea> peer_area_;  // null: none
  bool passed_own_ = false;
  bool lends_ = false;
  bool socket_over_ = false;  // no byte comes over it any more
  std::string failure_;
};

// ---------------------------------------------------------------------------------- the beginning

void SharedStream::offer(std::size_t ring_bytes) {
  auto made = SharedMemory::make(ring_bytes);
  std::array<std::byte, kMessageBytes> message{};
  if (made) {
    message[0] = kYes;
    BytesOut(std::span(message).subspan(4)).number(static_cast<std::uint32_t>(ring_bytes));
    const std::ptrdiff_t sent =
        send_with_descriptor(socket_->descriptor(), message, made.value().descriptor());
    if (sent == static_cast<std::ptrdiff_t>(message.size())) {
      made.value().close_descriptor();
      offered_ = std::move(made).value();
      return;
    }
    if (sent > 0) {
      failure_ = kTakesNothing;
      return;
    }
    // Too many descriptors of this user are under way, or a rule of the system forbids it.
    made = Error{ErrorCode::unreachable, "it cannot be passed: " + errno_text(errno)};
  }
  log_debug("a link within this machine goes without shared memory: " + made.error().text);
  message = {kNo};
  if (socket_->write(message).bytes == message.size()) return go_plain();
  failure_ = kTakesNothing;
}

void SharedStream::socket_ready(bool readable, bool writable) {
  switch (state_) {
    case State::offering:
      return take_answer();
    case State::awaiting:
      return take_memory();
    case State::shared:
      return hear_bell();
    case State::plain:
      break;
  }
  const auto ready = ready_;
  if (ready && *ready) (*ready)(readable, writable);
}

/// Have all bytes of a message of the beginning come, with what it passes? If none will come any
/// more the stream has failed.
bool SharedStream::receive_message(Passed& passed) {
  const std::ptrdiff_t got =
      receive_with_descriptor(socket_->descriptor(), message_, passed.descriptor);
  if (got == static_cast<std::ptrdiff_t>(kMessageBytes)) return true;
  // The message is sent in one piece, and comes in one.
  if (got > 0) failure_ = "broken framing: a part of a message about the shared memory";
  if (got == 0) failure_ = kOtherClosed;
  if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
    failure_ = errno_text(errno);
  }
  if (!failure_.empty()) socket_->want(false, false);
  return false;
}

void SharedStream::take_answer() {
  Passed nothing;
  if (!receive_message(nothing)) return;
  if (message_[0] == kYes) return begin(std::move(*std::exchange(offered_, {})));
  offered_.reset();
  go_plain();
}

void SharedStream::take_memory() {
  Passed passed;
  if (!receive_message(passed)) return;
  if (message_[0] != kYes) return go_plain();
  const auto ring_bytes = BytesIn(std::span(message_).subspan(4)).number<std::uint32_t>();
  auto taken = SharedMemory::take(passed.descriptor, ring_bytes);
  std::array<std::byte, kMessageBytes> answer{};
  answer[0] = taken ? kYes : kNo;
  if (socket_->write(answer).bytes != answer.size()) {
    failure_ = kTakesNothing;
    return;
  }
  if (taken) return begin(std::move(taken).value());
  log_debug("a link within this machine goes without shared memory: " + taken.error().text);
  go_plain();
}

void SharedStream::begin(SharedMemory memory) {
  memory_ = std::move(memory);
  writer_ = memory_->writer();
  reader_ = memory_->reader();
  state_ = State::shared;
  if (own_) pass_area();
}

void SharedStream::go_plain() {
  state_ = State::plain;
  socket_->want(want_read_, want_write_);
}

// ---------------------------------------------------------------------------------- readiness

bool SharedStream::readable() const {
  if (!failure_.empty()) return true;
  if (state_ != State::shared) return false;
  const auto bytes = reader_->here();
  return !bytes || !bytes->empty() || socket_over_;
}

bool SharedStream::writable() const {
  if (!failure_.empty()) return true;
  return state_ == State::shared && writer_->room() != std::size_t{0};
}

bool SharedStream::look() {
  const bool read = want_read_ && readable();
  const bool write = want_write_ && writable();
  if (!read && !write) return false;
  const auto ready = ready_;
  if (ready && *ready) (*ready)(read, write);
  return true;
}

bool SharedStream::sleep() {
  if (state_ == State::shared) {
    const bool reads = !want_read_ || reader_->sleep();
    const bool writes = !want_write_ || writer_->sleep();
    if (!reads || !writes) return false;
  }
  // Its end rings no bell any more.
  return !(want_read_ && readable()) && !(want_write_ && writable());
}

void SharedStream::wake() {
  if (state_ != State::shared) return;
  reader_->wake();
  writer_->wake();
}

void SharedStream::hear_bell() {
  std::array<std::byte, 256> rings;
  Passed passed;
  const std::ptrdiff_t got =
      receive_with_descriptor(socket_->descriptor(), rings, passed.descriptor);
  if (got > 0) {
    const auto heard = std::span(rings).first(static_cast<std::size_t>(got));
    if (passed.descriptor >= 0) take_area(passed.descriptor);
    if (passed_own_ && std::ranges::count(heard, kHasMapped) > 0) lends_ = true;
  } else if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
    // All that the other side has written before it ended lies in the memory.
    socket_over_ = true;
    socket_->want(false, false);
  }
  static_cast<void>(look());  // may destroy this stream
}

// ---------------------------------------------------------------------------------- areas

void SharedStream::pass_area() {
  const auto own = std::exchange(own_, nullptr);
  passed_own_ = send_with_descriptor(socket_->descriptor(), std::span(&kPassesArea, 1),
                                     own->descriptor()) == 1;
  if (passed_own_) return;
  log_debug("a link within this machine goes without the area of this process: " +
            errno_text(errno));
}

void SharedStream::take_area(int descriptor) {
  if (peer_area_) return;
  auto taken = PeerArea::take(descriptor);
  if (taken) {
    peer_area_ = std::move(taken).value();
    if (!ring(kHasMapped)) log_debug("a process does not hear that its area is mapped");
    return;
  }
  log_debug("a link within this machine goes without the area of the other process: " +
            taken.error().text);
}

// ---------------------------------------------------------------------------------- bytes

Stream::Moved SharedStream::read(std::span<const iovec> parts) {
  if (state_ == State::plain) return socket_->read(parts);
  if (state_ != State::shared || !failure_.empty()) return nothing();
  std::size_t moved = 0;
  for (const iovec& part : parts) {
    std::size_t done = 0;
    while (done < part.iov_len) {
      const auto bytes = here();
      const std::size_t now = std::min({part.iov_len - done, bytes.size(), kRingPieceBytes});
      if (now == 0) break;
      std::memcpy(static_cast<std::byte*>(part.iov_base) + done, bytes.data(), now);
      take(now);
      done += now;
    }
    moved += done;
    if (done < part.iov_len) break;
  }
  return moved == 0 ? nothing() : Moved{Outcome::moved, moved, {}};
}

Stream::Moved SharedStream::peek(std::span<std::byte> into) {
  if (state_ == State::plain) return socket_->peek(into);
  const auto bytes = here();
  const std::size_t seen = std::min(into.size(), bytes.size());
  if (seen == 0) return nothing();
  std::memcpy(into.data(), bytes.data(), seen);
  return {Outcome::moved, seen, {}};
}

std::span<const std::byte> SharedStream::here() {
  if (state_ != State::shared || !failure_.empty()) return {};
  const auto bytes = reader_->here();
  if (!bytes) failure_ = kLies;
  return bytes.value_or(std::span<const std::byte>());
}

Stream::Moved SharedStream::write(std::span<const iovec> parts) {
  if (state_ == State::plain) return socket_->write(parts);
  if (state_ != State::shared || !failure_.empty()) return nothing();
  std::size_t moved = 0;
  for (const iovec& part : parts) {
    std::size_t done = 0;
    while (done < part.iov_len) {
      const auto room = writer_->room();
      if (!room) {
        failure_ = kLies;
        return nothing();
      }
      const std::size_t now = std::min({part.iov_len - done, *room, kRingPieceBytes});
      if (now == 0) break;
      writer_->write({static_cast<const std::byte*>(part.iov_base) + done, now});
      if (writer_->wakes_reader()) ring();
      done += now;
    }
    moved += done;
    if (done < part.iov_len) break;
  }
  if (moved > 0) return {Outcome::moved, moved, {}};
  return failure_.empty() ? Moved{} : nothing();
}

void SharedStream::close() {
  if (!open()) return;
  loop_.unwatch(*this);
  socket_->close();
  for (auto* memory : {&memory_, &offered_}) {
    if (*memory && loop_.registry().in_child()) (*memory)->forget();
  }
  memory_.reset();
  offered_.reset();
  writer_.reset();
  reader_.reset();
  own_.reset();
  peer_area_.reset();
  lends_ = false;
  ready_.reset();
}

}  // namespace

std::unique_ptr<Stream> offer_shared_memory(Loop& loop, std::unique_ptr<Stream> socket,
                                            std::size_t ring_bytes) {
  auto stream =
      std::make_unique<SharedStream>(loop, std::move(socket), SharedStream::State::offering);
  stream->offer(ring_bytes);
  return stream;
}

std::unique_ptr<Stream> await_shared_memory(Loop& loop, std::unique_ptr<Stream> socket) {
  return std::make_unique<SharedStream>(loop, std::move(socket), SharedStream::State::awaiting);
}

}  // namespace pccl
