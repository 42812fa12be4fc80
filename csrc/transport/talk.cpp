#include "transport/talk.h"

#include <array>
#include <utility>

namespace pccl {
namespace {

using How = TalkEnd::How;

}  // namespace

Talk::Talk(Loop& loop, std::unique_ptr<Stream> stream, std::uint64_t deadline_ms)
    : loop_(loop), stream_(std::move(stream)) {
  listen();
  deadline_ = loop_.timer(deadline_ms, 0, [this, deadline_ms] {
    fail("no complete handshake within " + std::to_string(deadline_ms) + " ms");
  });
}

void Talk::listen() {
  stream_->on_ready([this](bool readable, bool) {
    const auto self = shared_from_this();
    if (protected_) return protection_ended();
    if (readable) ready();
  });
}

void Talk::send(std::span<const std::byte> bytes) {
  if (over()) return;
  const Stream::Moved sent = stream_->write(bytes);
  if (sent.outcome == Stream::Outcome::failed) return end({How::gone, sent.error});
  if (sent.bytes != bytes.size()) fail("the connection takes no bytes");
}

void Talk::expect(std::size_t size, Got got,
                  std::function<bool(std::span<const std::byte>)> plausible) {
  if (over()) return;
  have_.clear();
  want_ = size;
  got_ = std::move(got);
  plausible_ = std::move(plausible);
  stream_->want(true, false);
}

bool Talk::waits_for_all() {
  std::byte first{};
  return have_.empty() && stream_->peek(std::span(&first, 1)).outcome == Stream::Outcome::later;
}

void Talk::finish() {
  if (over()) return;
  finishing_ = true;
  stream_->shut();
  stream_->want(true, false);
}

void Talk::protect(const Make& make, std::string unproven, std::function<void()> done) {
  if (over()) return;
  stream_->on_ready(nullptr);
  std::unique_ptr<TlsStream> tls = make(std::move(stream_));
  tls_ = tls.get();
  stream_ = std::move(tls);
  unproven_ = std::move(unproven);
  protected_ = std::move(done);
  listen();
  stream_->want(true, true);
}

void Talk::protection_ended() {
  const auto done = std::exchange(protected_, nullptr);
  stream_->want(false, false);
  if (tls_->established()) return done();
  const bool not_proven = tls_->refused();
  std::byte nothing{};
  const Stream::Moved last = stream_->read(std::span(&nothing, 1));
  if (not_proven) return end({How::not_proven, unproven_ + " (" + last.error + ")"});
  if (last.error.empty()) return end({How::gone, kOtherClosed});
  fail(last.error);
}

void Talk::tell_over(bool taken) {
  if (const auto over = std::exchange(over_, nullptr)) over(taken);
}

/// The owner may release the talk when it is told.
void Talk::leave(bool taken) {
  tell_over(taken);
  deadline_.reset();
  failed_ = nullptr;
  protected_ = nullptr;
  if (stream_) stream_->on_ready(nullptr);
}

std::unique_ptr<Stream> Talk::take(bool plain) {
  const auto self = shared_from_this();
  leave(true);
  TlsStream* const tls = std::exchange(tls_, nullptr);
  if (tls == nullptr) return std::move(stream_);
  if (!plain) {
    tls->read_ahead();
    return std::move(stream_);
  }
  static_cast<void>(stream_.release());
  return TlsStream::unwrap(std::unique_ptr<TlsStream>(tls));
}

void Talk::drop() {
  const auto self = shared_from_this();
  leave(false);
  tls_ = nullptr;
  stream_.reset();
}

void Talk::end(TalkEnd end) {
  if (over()) return;
  const auto self = shared_from_this();
  deadline_.reset();
  stream_->close();
  tell_over(false);
  loop_.defer([self, end = std::move(end)] {
    const auto failed = std::exchange(self->failed_, nullptr);
    if (failed) failed(end);
  });
}

void Talk::ready() {
  std::array<std::byte, 512> buffer;
  while (!over()) {
    const std::size_t size = finishing_ ? buffer.size() : want_ - have_.size();
    const Stream::Moved got = stream_->read(std::span(buffer).first(std::min(size, buffer.size())));
    if (got.outcome == Stream::Outcome::later) return;
    if (got.outcome == Stream::Outcome::failed) return end({How::gone, got.error});
    if (got.outcome == Stream::Outcome::ended) {
      return end({silent_ ? How::looked : How::gone, kOtherClosed});
    }
    silent_ = false;
    if (finishing_) return;  // the other side may never stop: other sockets have their turn
    have_.insert(have_.end(), buffer.data(), buffer.data() + got.bytes);
    if (plausible_ && !plausible_(have_)) {
      return end({How::not_pccl, "its first bytes are not pccl's"});
    }
    if (have_.size() == want_) {
      stream_->want(false, false);
      const auto bytes = std::move(have_);
      have_.clear();
      const auto call = std::move(got_);
      call(bytes);
      return;
    }
  }
}

}  // namespace pccl
