// A Stream between two owners on one loop, in memory: moves bytes in pieces of a chosen size, and
// breaks when it is told to. A stand-in for what is not TCP.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "loop_stream.h"
#include "transport/loop.h"

namespace pccl::test {

class MemoryStream : public LoopStream {
 public:
  /// Two ends. Each call moves `piece` bytes at most, and a direction holds `room` bytes.
  static std::pair<std::unique_ptr<MemoryStream>, std::unique_ptr<MemoryStream>> pair(
      Loop& loop, std::size_t piece, std::size_t room) {
    auto there = std::make_shared<Pipe>();
    auto back = std::make_shared<Pipe>();
    there->room = back->room = room;
    return {std::unique_ptr<MemoryStream>(new MemoryStream(loop, piece, back, there)),
            std::unique_ptr<MemoryStream>(new MemoryStream(loop, piece, there, back))};
  }
  ~MemoryStream() override { close(); }

  using Stream::read;
  using Stream::write;
  Moved read(std::span<const iovec> parts) override {
    ++reads;
    std::size_t moved = 0;
    for (const iovec& part : parts) {
      const std::size_t now = std::min({part.iov_len, piece_ - moved, in_->bytes.size() - moved});
      std::copy_n(in_->bytes.begin() + static_cast<std::ptrdiff_t>(moved), now,
                  static_cast<std::byte*>(part.iov_base));
      moved += now;
    }
    if (moved == 0) return nothing_to_read();
    in_->bytes.erase(in_->bytes.begin(), in_->bytes.begin() + static_cast<std::ptrdiff_t>(moved));
    if (in_->writer != nullptr) in_->writer->look();
    look();
    return {Outcome::moved, moved, {}};
  }
  Moved write(std::span<const iovec> parts) override {
    if (out_->reader == nullptr || write_fails) return {Outcome::failed, 0, "broken on purpose"};
    std::size_t moved = 0;
    for (const iovec& part : parts) {
      const std::size_t now =
          std::min({part.iov_len, piece_ - moved, out_->room - out_->bytes.size()});
      const auto* from = static_cast<const std::byte*>(part.iov_base);
      out_->bytes.insert(out_->bytes.end(), from, from + now);
      moved += now;
    }
    if (moved == 0) return {};
    out_->reader->look();
    look();
    return {Outcome::moved, moved, {}};
  }
  Moved peek(std::span<std::byte> into) override {
    const std::size_t seen = std::min(into.size(), in_->bytes.size());
    if (seen == 0) return nothing_to_read();
    std::copy_n(in_->bytes.begin(), seen, into.begin());
    return {Outcome::moved, seen, {}};
  }
  void shut() override {
    out_->ended = true;
    if (out_->reader != nullptr) out_->reader->look();
  }
  void close() override {
    if (!open_) return;
    open_ = false;
    tell_no_more();
    shut();
    in_->reader = nullptr;
    out_->writer = nullptr;
    if (in_->writer != nullptr) in_->writer->look();
  }
  [[nodiscard]] bool open() const override { return open_; }
  [[nodiscard]] std::string remote() const override { return "memory:1"; }
  [[nodiscard]] std::string remote_host() const override { return "memory"; }
  [[nodiscard]] std::string local_host() const override { return "memory"; }
  [[nodiscard]] bool same_machine() const override { return true; }

  bool write_fails = false;
  int reads = 0;  // calls

 private:
  struct Pipe {
    std::vector<std::byte> bytes;
    std::size_t room = 0;
    bool ended = false;
    MemoryStream* reader = nullptr;
    MemoryStream* writer = nullptr;
  };
  MemoryStream(Loop& loop, std::size_t piece, std::shared_ptr<Pipe> in, std::shared_ptr<Pipe> out)
      : LoopStream(loop), piece_(piece), in_(std::move(in)), out_(std::move(out)) {
    in_->reader = this;
    out_->writer = this;
  }
  [[nodiscard]] Moved nothing_to_read() const {
    return {in_->ended ? Outcome::ended : Outcome::later, 0, {}};
  }
  [[nodiscard]] bool readable() const override {
    return wants_read() && (!in_->bytes.empty() || in_->ended);
  }
  [[nodiscard]] bool writable() const override {
    return wants_write() && (out_->bytes.size() < out_->room || out_->reader == nullptr);
  }

  std::size_t piece_;
  std::shared_ptr<Pipe> in_;
  std::shared_ptr<Pipe> out_;
  bool open_ = true;
};

}  // namespace pccl::test
