#include "transport/talk.h"

#include <array>
#include <utility>

namespace pccl {

Talk::Talk(Loop& loop, std::unique_ptr<Stream> stream, std::uint64_t deadline_ms)
    : loop_(loop), stream_(std::move(stream)) {
  stream_->on_ready([this](bool readable, bool) {
    const auto self = shared_from_this();
    if (readable) ready();
  });
  deadline_ = loop_.timer(deadline_ms, 0, [this, deadline_ms] {
    fail("no complete handshake within " + std::to_string(deadline_ms) + " ms");
  });
}

void Talk::on_failed(std::function<void(const std::string& reason)> failed) {
  failed_ = std::move(failed);
}

void Talk::send(std::span<const std::byte> bytes) {
  if (over()) return;
  const Stream::Moved sent = stream_->write(bytes);
  if (sent.bytes != bytes.size()) {
    fail(sent.outcome == Stream::Outcome::failed ? sent.error : "the connection takes no bytes");
  }
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

void Talk::finish() {
  if (over()) return;
  finishing_ = true;
  stream_->shut();
  stream_->want(true, false);
}

std::unique_ptr<Stream> Talk::take() {
  deadline_.reset();
  failed_ = nullptr;
  if (stream_) stream_->on_ready(nullptr);
  return std::move(stream_);
}

void Talk::drop() { (void)take(); }

void Talk::fail(const std::string& reason) {
  if (over()) return;
  deadline_.reset();
  stream_->close();
  loop_.defer([self = shared_from_this(), reason] {
    const auto failed = std::exchange(self->failed_, nullptr);
    if (failed) failed(reason);
  });
}

void Talk::ready() {
  std::array<std::byte, 512> buffer;
  while (!over()) {
    const std::size_t size = finishing_ ? buffer.size() : want_ - have_.size();
    const Stream::Moved got = stream_->read(std::span(buffer).first(std::min(size, buffer.size())));
    if (got.outcome == Stream::Outcome::later) return;
    if (got.outcome == Stream::Outcome::failed) return fail(got.error);
    if (got.outcome == Stream::Outcome::ended) {
      only_looked_ = silent_;
      return fail("the other side has closed the connection");
    }
    silent_ = false;
    if (finishing_) continue;
    have_.insert(have_.end(), buffer.data(), buffer.data() + got.bytes);
    if (plausible_ && !plausible_(have_)) return fail(kNotPccl);
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
