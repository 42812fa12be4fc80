// A connection as TCP has it, of which a test decides what arrives when: bytes that were written
// are under way, then acknowledged and unread at the other end, then read. When it is lost, what is
// under way is gone, and each end hears of it at a time of its own.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "loop_stream.h"
#include "transport/loop.h"

namespace pccl::test {

class PlayedConnection {
 public:
  /// Each direction has so many bytes under way at most.
  PlayedConnection(Loop& loop, std::size_t room) : loop_(loop), room_(room) {}

  /// The stream of end 0 or 1. To be taken once; it must not outlive this object while it is open.
  std::unique_ptr<Stream> end(std::size_t which) { return std::make_unique<End>(*this, which); }
  /// So many of the bytes that this end has written arrive.
  void deliver(std::size_t from, std::size_t bytes) {
    Way& way = ways_[from];
    Way& back = ways_[1 - from];
    if (lost_ || way.failed) return;
    if (back.closed && (!way.under_way.empty() || way.closed)) {
      if (!way.under_way.empty()) fail(from);  // nobody is there
      return;
    }
    const auto begin = way.under_way.begin();
    const auto now = static_cast<std::ptrdiff_t>(std::min(bytes, way.under_way.size()));
    way.unread.insert(way.unread.end(), begin, begin + now);
    way.under_way.erase(begin, begin + now);
    look();
  }
  /// Bytes that this end has written and that have not arrived.
  [[nodiscard]] std::size_t under_way(std::size_t from) const {
    return ways_[from].under_way.size();
  }
  /// From now on nothing arrives any more.
  void lose() { lost_ = true; }
  /// This end hears that the connection is lost. What it has under way still counts as such, as in
  /// Linux.
  void fail(std::size_t which) {
    lost_ = true;
    ways_[which].failed = true;
    look();
  }
  [[nodiscard]] bool lost() const { return lost_; }
  [[nodiscard]] bool over() const { return lost_ && ways_[0].failed && ways_[1].failed; }

 private:
  /// What one end writes.
  struct Way {
    std::deque<std::byte> under_way;
    std::deque<std::byte> unread;  // by the other end
    bool ended = false;            // no more is written
    bool closed = false;           // by the end that writes
    bool failed = false;           // as that end sees it
  };

  class End final : public LoopStream {
   public:
    End(PlayedConnection& of, std::size_t which) : LoopStream(of.loop_), of_(of), which_(which) {
      of_.ends_[which] = this;
    }
    ~End() override { close(); }
    using Stream::read;
    using Stream::write;
    Moved read(std::span<const iovec> parts) override {
      const std::lock_guard lock(of_.mutex_);
      std::size_t moved = 0;
      for (const iovec& part : parts) {
        const std::size_t now = std::min(part.iov_len, in().unread.size());
        std::copy_n(in().unread.begin(), now, static_cast<std::byte*>(part.iov_base));
        in().unread.erase(in().unread.begin(),
                          in().unread.begin() + static_cast<std::ptrdiff_t>(now));
        moved += now;
      }
      if (moved > 0) return {Outcome::moved, moved, {}};
      if (out().failed) return {Outcome::failed, 0, "lost on purpose"};
      return {ends() ? Outcome::ended : Outcome::later, 0, {}};
    }
    Moved write(std::span<const iovec> parts) override {
      const std::lock_guard lock(of_.mutex_);
      if (out().failed) return {Outcome::failed, 0, "lost on purpose"};
      std::size_t moved = 0;
      for (const iovec& part : parts) {
        const std::size_t now = std::min(part.iov_len, of_.room_ - out().under_way.size());
        const auto* from = static_cast<const std::byte*>(part.iov_base);
        out().under_way.insert(out().under_way.end(), from, from + now);
        moved += now;
      }
      if (moved == 0) return {};
      return {Outcome::moved, moved, {}};
    }
    [[nodiscard]] std::size_t unacknowledged_bytes() const override {
      return of_.ways_[which_].under_way.size();
    }
    Moved peek(std::span<std::byte> into) override {
      std::copy_n(in().unread.begin(), std::min(into.size(), in().unread.size()), into.begin());
      return {Outcome::moved, into.size(), {}};
    }
    void shut() override { out().ended = true; }
    void close() override {
      if (!std::exchange(open_, false)) return;
      tell_no_more();
      out().ended = out().closed = true;
      of_.ends_[which_] = nullptr;
      if (!in().unread.empty() && !of_.lost_) of_.fail(1 - which_);  // a reset
      of_.look();
    }
    [[nodiscard]] bool open() const override { return open_; }
    [[nodiscard]] std::string remote() const override { return "played:1"; }
    [[nodiscard]] std::string remote_host() const override { return "played"; }
    [[nodiscard]] std::string local_host() const override { return "played"; }
    [[nodiscard]] bool same_machine() const override { return false; }

   private:
    [[nodiscard]] Way& out() const { return of_.ways_[which_]; }
    [[nodiscard]] Way& in() const { return of_.ways_[1 - which_]; }
    [[nodiscard]] bool ends() const { return in().ended && in().under_way.empty() && !of_.lost_; }
    [[nodiscard]] bool readable() const override {
      return wants_read() && (!in().unread.empty() || ends() || out().failed);
    }
    [[nodiscard]] bool writable() const override {
      return wants_write() && (out().failed || out().under_way.size() < of_.room_);
    }

    PlayedConnection& of_;
    std::size_t which_;
    bool open_ = true;
  };

  void look() {
    for (End* end : ends_) {
      if (end != nullptr) end->look();
    }
  }

  Loop& loop_;
  std::mutex mutex_;  // both ends may move bytes at once, on threads that help the loop
  std::size_t room_;
  std::array<Way, 2> ways_;
  std::array<End*, 2> ends_{};
  bool lost_ = false;
};

}  // namespace pccl::test
