// One direction of a memory that two processes share: a ring of bytes with one writer and one
// reader. Pure memory: no call of the system, no wait. What the other process writes into the
// header is believed only within the ring's limits; a lie costs the reader its bytes, never its
// memory.
//
// The bytes of the ring are mapped twice, one behind the other (shared_memory.h), so that any
// stretch of them lies in one piece.
//
// Sleeping. A side that is about to sleep says so in the header and then looks once more; a side
// that has moved bytes looks whether the other one sleeps. All four steps are sequentially
// consistent, so at least one of the two sees the other's step, and no wake-up is lost.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace pccl {

/// In the shared memory. Each field has one writer, and a cache line of its own (two, since CPUs
/// fetch pairs).
struct RingHeader {
  alignas(128) std::atomic<std::uint64_t> written;  // bytes so far; by the writer
  alignas(128) std::atomic<std::uint64_t> read;     // bytes so far; by the reader
  alignas(128) std::atomic<std::uint32_t> reader_sleeps;
  alignas(128) std::atomic<std::uint32_t> writer_sleeps;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// So many bytes are shown to the other side at once: it copies them while the next ones follow,
/// and they are still in the caches.
inline constexpr std::size_t kRingPieceBytes = 64U << 10;

/// A writer that is short of room leaves less than that free: what a reader sees of a payload that
/// is not whole is a multiple of it, so that no number is cut in two.
inline constexpr std::size_t kRingGrainBytes = 64;

/// One process uses the writer, the other one the reader; each on one thread at a time.
class RingWriter {
 public:
  RingWriter(RingHeader& header, std::byte* bytes, std::size_t size)
      : header_(&header), bytes_(bytes), size_(size) {}

  /// Bytes that fit now, in grains; nothing: the reader's count cannot be.
  [[nodiscard]] std::optional<std::size_t> room() const {
    const std::uint64_t unread = written_ - header_->read.load();
    if (unread > size_) return {};
    return (size_ - static_cast<std::size_t>(unread)) / kRingGrainBytes * kRingGrainBytes;
  }
  /// Bytes that the reader has not taken yet.
  [[nodiscard]] std::size_t unread() const {
    const std::uint64_t bytes = written_ - header_->read.load(std::memory_order_acquire);
    return bytes > size_ ? 0 : static_cast<std::size_t>(bytes);
  }
  /// Copies `from`, which fits into the room, and shows it to the reader.
  void write(std::span<const std::byte> from) {
    std::memcpy(bytes_ + written_ % size_, from.data(), from.size());
    written_ += from.size();
    header_->written.store(written_);
  }
  /// After a write: must the reader be woken?
  [[nodiscard]] bool wakes_reader() {
    return header_->reader_sleeps.load() != 0 && header_->reader_sleeps.exchange(0) != 0;
  }
  /// The writer is about to sleep until there is room. False: there is some.
  [[nodiscard]] bool sleep() {
    header_->writer_sleeps.store(1);
    if (room() == std::size_t{0}) return true;
    wake();
    return false;
  }
  void wake() { header_->writer_sleeps.store(0, std::memory_order_relaxed); }

 private:
  RingHeader* header_;
  std::byte* bytes_;
  std::size_t size_;
  std::uint64_t written_ = 0;
};

class RingReader {
 public:
  RingReader(RingHeader& header, const std::byte* bytes, std::size_t size)
      : header_(&header), bytes_(bytes), size_(size) {}

  /// Bytes that have come and are not taken yet; nothing: the writer's count cannot be. They may
  /// change while they lie there: a reader decides by a copy.
  [[nodiscard]] std::optional<std::span<const std::byte>> here() const {
    const std::uint64_t unread = header_->written.load() - read_;
    if (unread > size_) return {};
    return std::span(bytes_ + read_ % size_, static_cast<std::size_t>(unread));
  }
  /// Gives so many bytes, which are here, back to the writer.
  void take(std::size_t bytes) {
    read_ += bytes;
    header_->read.store(read_);
  }
  /// After a take: must the writer be woken? Not before half of the ring is free: each wake-up
  /// costs more than copying a few thousand bytes.
  [[nodiscard]] bool wakes_writer() {
    if (header_->writer_sleeps.load() == 0) return false;
    const std::uint64_t unread = header_->written.load(std::memory_order_relaxed) - read_;
    return unread <= size_ / 2 && header_->writer_sleeps.exchange(0) != 0;
  }
  /// The reader is about to sleep until bytes come. False: some have.
  [[nodiscard]] bool sleep() {
    header_->reader_sleeps.store(1);
    const auto bytes = here();
    if (bytes && bytes->empty()) return true;
    wake();
    return false;
  }
  void wake() { header_->reader_sleeps.store(0, std::memory_order_relaxed); }

 private:
  RingHeader* header_;
  const std::byte* bytes_;
  std::size_t size_;
  std::uint64_t read_ = 0;
};

}  // namespace pccl
